"""Installation and removal of the agent's service files.

Each release replaces the files that carry our mark. The administrator's files, which are the
agent's options and the node's policies, are never overwritten.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.tenants.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

UNIT = "penstock-agent.service"
DEFAULT_PROGRAM = "/opt/penstock/bin/penstock"  # in the unit as shipped
MARK = "# Written by penstock agent install; it goes with penstock agent uninstall."
MARK_WITHIN_LINES = 3
OPTIONS = """\
# Options of the agent; systemctl restart penstock-agent puts them in force. penstock agent --help
# lists them; on a machine without a GPU: --simulate h200
PENSTOCK_AGENT_OPTIONS=
"""
# Where shells on Debian and RHEL look for completions.
COMPLETIONS = {
    "bash": "usr/local/share/bash-completion/completions/penstock",
    "zsh": "usr/local/share/zsh/site-functions/_penstock",
    "fish": "usr/local/share/fish/vendor_completions.d/penstock.fish",
}
_SERVICE, _LINK = f"etc/systemd/system/{UNIT}", "usr/local/bin/penstock"
_CONFIGURATION, _OPTIONS, _POLICIES = (
    "etc/penstock",
    "etc/penstock/agent.env",
    "etc/penstock/policies",
)
_PLAIN = re.compile(r"[\w./+:=,@-]+", re.ASCII)  # text that needs no quoting in a unit
_STATES = ("run/penstock", "var/lib/penstock")
_UNSEEN = ("/tmp/", "/var/tmp/", "/dev/")  # noqa: S108 - the service has private versions of these


@dataclass(frozen=True)
class Step:
    """An action on a path, or the reason why no action is needed."""

    verb: str  # "write", "keep", "remove", …
    path: Path
    why: str = ""
    act: Callable[[], None] | None = None

    def carry_out(self) -> None:
        """Performs the action. Raises OSError if it fails."""
        if self.act is not None:
            self.act()

    def __str__(self) -> str:
        return f"{self.verb} {self.path}" + (f" ({self.why})" if self.why else "")


class Installation:
    """The service's files under the file system root `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def install(self, program: Path, completions: Mapping[str, str]) -> Iterator[Step]:
        """The steps, in order, that install a service running `program`.

        `program`: its path on the installed machine. `completions`: the completion script of each
        shell.

        Raises:
            PenstockError: a file in the way is not ours, or the program cannot be started.
        """
        self._check_program(program)
        for place, text in _texts(program, completions).items():
            yield self._write(self._root / place, text)
        yield from self._link_to(program)
        options = self._root / _OPTIONS
        if options.exists():
            yield Step("keep", options, "it belongs to the administrator")
        else:
            yield Step("write", options, "the agent's options", lambda: _write(options, OPTIONS))
        policies = self._root / _POLICIES
        if policies.is_dir():
            yield Step("keep", policies, "it belongs to the administrator")
        else:
            why = "for the node's policies"
            yield Step("make", policies, why, lambda: policies.mkdir(parents=True))

    def _link_to(self, program: Path) -> Iterator[Step]:
        link = self._root / _LINK
        if link == self._root / str(program).lstrip("/"):
            pass  # the program is already in the default PATH
        elif _is_link_to(link, program):
            yield Step("keep", link, "it is up to date")
        else:
            self._check_ours(link, is_ours=not os.path.lexists(link) or self._is_our_link(link))
            yield Step("link", link, f"to {program}", lambda: _link(link, program))

    def _check_program(self, program: Path) -> None:
        if not program.is_absolute() or str(program).startswith(_UNSEEN):
            raise PenstockError(
                f"the service cannot run {program}",
                "a service needs an absolute path, outside the temporary folders",
                "install penstock into /opt/penstock, and run /opt/penstock/bin/penstock agent "
                "install",
            )
        file = self._root / str(program).lstrip("/")
        if not file.exists():
            raise PenstockError(
                f"there is no {program} in {self._root}",
                "the service would have nothing to run",
                "install penstock there first, or name another --program",
            )
        if not file.is_file() or not os.access(file, os.X_OK):
            raise PenstockError(
                f"the service cannot run {program}",
                "it is a directory" if file.is_dir() else "it is not an executable file",
                "name the program itself: --program /opt/penstock/bin/penstock",
            )
        if not str(program).isprintable():
            raise PenstockError(
                f"the service cannot run {str(program)!r}",
                "a systemd unit cannot contain unprintable characters",
                "install penstock into /opt/penstock",
            )  # fmt: skip

    def uninstall(self, *, purge: bool = False) -> Iterator[Step]:
        """The steps, in order; `purge` also removes configuration, metered usage and state.

        Raises:
            PenstockError: there are tenants whose state would be removed.
        """
        if purge:
            self._check_no_tenants()
        for place in (_SERVICE, *COMPLETIONS.values()):
            file = self._root / place
            if _is_ours(file):
                yield Step("remove", file, "", file.unlink)
            elif os.path.lexists(file):
                yield Step("keep", file, "it was not written by penstock agent install")
        link = self._root / _LINK
        if self._is_our_link(link):
            yield Step("remove", link, "", link.unlink)
        yield from self._purge() if purge else self._leave()

    def check_idle(self) -> None:
        """Raises `PenstockError` if a purge would remove the state of an agent or of tenants."""
        state = State(self._root / _STATES[0])
        if state.has_agent():
            raise PenstockError(
                f"an agent is running on {state.directory}", "it would lose its files",
                "stop it first, or omit --purge", reason="not-now",
            )  # fmt: skip
        self._check_no_tenants()

    def _purge(self) -> Iterator[Step]:
        for place in (_CONFIGURATION, *_STATES):
            folder = self._root / place
            if os.path.lexists(folder):
                remove = functools.partial(shutil.rmtree, folder)
                yield Step("remove", folder, "with everything in it", remove)

    def _leave(self) -> Iterator[Step]:
        """Removes unmodified configuration, and lists everything that is kept."""
        options, policies = self._root / _OPTIONS, self._root / _POLICIES
        kept = [state for place in _STATES if (state := self._root / place).exists()]
        if options.exists():
            if options.read_text(encoding="utf-8", errors="replace") == OPTIONS:
                yield Step("remove", options, "", options.unlink)
            else:
                kept.append(options)
        if policies.is_dir():
            if any(policies.iterdir()):
                kept.append(policies)
            else:
                yield Step("remove", policies, "", policies.rmdir)
        folder = self._root / _CONFIGURATION
        left = set(folder.iterdir()) if folder.is_dir() else {folder}
        if left <= {options, policies} and not left.intersection(kept):
            yield Step("remove", folder, "", folder.rmdir)
        yield from (Step("keep", one, "--purge removes it") for one in kept)

    def _write(self, file: Path, text: str) -> Step:
        if not os.path.lexists(file):
            return Step("write", file, "", lambda: _write(file, text))
        self._check_ours(file, is_ours=_is_ours(file))
        if file.read_text(encoding="utf-8") == text:
            return Step("keep", file, "it is up to date")
        return Step("write", file, "it was written by another release", lambda: _write(file, text))

    def _is_our_link(self, link: Path) -> bool:
        """Whether the link is ours: it points to any penstock, as an upgrade may have moved it."""
        return link.is_symlink() and link.readlink().name == "penstock"

    @staticmethod
    def _check_ours(file: Path, *, is_ours: bool) -> None:
        if not is_ours:
            raise PenstockError(
                f"{file} already exists", "it was not written by penstock agent install",
                "move it away; nothing was changed",
            )  # fmt: skip

    def _check_no_tenants(self) -> None:
        folder = self._root / "run/penstock/tenants"
        names = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
        names = [name for name in names if not name.startswith(".")]
        if names:
            raise PenstockError(
                f"{len(names)} tenants exist",
                f"--purge would remove the state of {', '.join(names[:8])}",
                "end them first (penstock revoke TENANT), or omit --purge", reason="not-now",
            )  # fmt: skip


def _texts(program: Path, completions: Mapping[str, str]) -> dict[str, str]:
    """The contents of our files, by path."""
    unit = files("penstock.node.service").joinpath(UNIT).read_text(encoding="utf-8")
    texts = {_SERVICE: f"{MARK}\n{unit.replace(DEFAULT_PROGRAM, _quoted(program))}"}
    for shell, text in completions.items():
        first, _, rest = text.strip().partition("\n")
        # zsh requires its #compdef tag on the first line.
        texts[COMPLETIONS[shell]] = (
            f"{first}\n{MARK}\n{rest}\n" if first.startswith("#") else f"{MARK}\n{text.strip()}\n"
        )
    return texts


def _quoted(program: Path) -> str:
    """The path quoted for ExecStart=, in which % starts a specifier and a space ends a word."""
    text = str(program).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def _is_ours(file: Path) -> bool:
    if file.is_symlink() or not file.is_file():
        return False
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return MARK in lines[:MARK_WITHIN_LINES]


def _is_link_to(link: Path, target: Path) -> bool:
    return link.is_symlink() and link.readlink() == target


def _write(file: Path, text: str) -> None:
    """Writes the file atomically, and readable by all users whatever our umask is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.chmod(0o644)
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)
