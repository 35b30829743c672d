"""Debian packages as counterparts for tests: unpacked into a folder, never installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import build_cache

if TYPE_CHECKING:
    from collections.abc import Iterator


class NotToBeHadError(Exception):
    """A package is not available on this machine; the message says why."""


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        fields = re.findall(r"^(\S+?):[ \t]*(.*)$", "\n".join(lines), re.MULTILINE)
        yield {key.lower(): value.strip() for key, value in fields}


def sources(component: str, folder: Path = Path("/etc/apt")) -> list[str]:
    """This machine's own Debian mirrors, as one-line sources of another component."""
    found = []
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for fields in _stanzas(path.read_text()):
            if "main" not in fields.get("components", "").split():
                continue
            signed = fields.get("signed-by")
            options = f"[signed-by={signed}] " if signed else ""
            for uri in fields.get("uris", "").split():
                found += [f"deb {options}{uri} {s} {component}" for s in fields["suites"].split()]
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for path in lists:
        lines = path.read_text().splitlines() if path.is_file() else []
        for line in lines:
            match = re.match(r"deb\s+(\[.*?\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
            if match and "main" in match[4].split():
                found.append(f"deb {match[1] or ''}{match[2]} {match[3]} {component}")
    return found


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise NotToBeHadError(
            f"`{command[0]} {command[-1]}` failed: {reason[-1] if reason else '?'}"
        )


def _download(folder: Path, package: str, component: str) -> None:
    mirrors = sources(component)
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NotToBeHadError("this is no Debian: apt-get and dpkg are needed to fetch it")
    if not mirrors:
        raise NotToBeHadError("/etc/apt names no Debian mirror to fetch it from")
    for part in ("lists/partial", "archives/partial", "state"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text("\n".join(mirrors) + "\n")
    options = [
        f"-oDir::Etc::sourcelist={folder}/sources.list",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={folder}/lists",
        f"-oDir::Cache::archives={folder}/archives",
        f"-oDir::Cache::pkgcache={folder}/pkgcache.bin",
        f"-oDir::Cache::srcpkgcache={folder}/srcpkgcache.bin",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::Languages=none",
    ]
    _run("apt-get", *options, "update", cwd=folder)
    _run("apt-get", *options, "download", package, cwd=folder)
    for file in folder.glob("*.deb"):
        _run("dpkg", "-x", str(file), str(folder / "unpacked"), cwd=folder)


def find(cache: Path, package: str, component: str, path: str) -> Path:
    """The file `path` of a package (any folder above it), fetched into `cache` on first use.

    Raises:
        NotToBeHadError: with the reason.
    """
    with build_cache.alone_with(cache):
        if not list(cache.glob(f"unpacked/**/{path}")):
            cache.mkdir(parents=True, exist_ok=True)
            try:
                _download(cache, package, component)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NotToBeHadError(str(error)) from error
    found = list(cache.glob(f"unpacked/**/{path}"))
    if not found:
        raise NotToBeHadError(f"Debian's {package} holds no {path}")
    return found[0].resolve()
