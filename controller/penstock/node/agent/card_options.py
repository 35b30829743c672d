"""The options of cards: the interpreter of their workers, and the user of other nodes' programs."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from shutil import which

from penstock.model import PenstockError, printable
from penstock.node.agent.card_workers import as_user, kept_variables

_DEFAULT_USER = "nobody"
_STARTS_WITHIN_S = 60.0  # from a slow file system, on a busy machine
_MARK = "missing:"
_PROGRAM = (
    "from importlib.util import find_spec; "
    f"print({_MARK!r}, *(one for one in ('penstock', 'torch') if find_spec(one) is None))"
)


def checked_card_options(
    python: Path | None, user: str | None, *, joins: bool, listens: bool
) -> tuple[str, int | None]:
    """The interpreter of cards, and the uid of those of programs on other nodes.

    The uid is None for the agent's own user. `joins`: the agent is to join a pool with other nodes;
    `listens`: it listens for them. A node whose agent has no options for cards need not be able to
    run any.

    Raises:
        PenstockError: an option is wrong.
    """
    uid = _uid(user) if joins or user is not None else None
    # Found as a shell finds it. It stays valid in another working directory, and keeps the links by
    # which a virtual environment is known.
    path = sys.executable if python is None else str(Path(which(python) or python).absolute())
    is_for_others = joins and listens
    if python is not None or (user is not None and is_for_others):
        _check_python(path, uid if is_for_others else None)
    return path, uid


def _uid(user: str | None) -> int | None:
    """The uid that --card-user names; None: the agent's own, if it does not run as root."""
    is_root = os.geteuid() == 0
    if user is None and not is_root:
        return None
    name = _DEFAULT_USER if user is None else user
    try:
        uid = pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise PenstockError(
            f"invalid value {printable(name)!r} for --card-user", "there is no such user here",
            "name a user without rights, such as nobody",
        ) from None  # fmt: skip
    if not is_root and uid != os.geteuid():
        raise PenstockError(
            f"invalid value {name!r} for --card-user", "the agent does not run as root",
            "leave the option out: cards run as the agent's own user", reason="not-allowed",
        )  # fmt: skip
    return uid


def _check_python(python: str, uid: int | None) -> None:
    """Runs the interpreter as the user of cards, and looks for what a card's worker needs."""
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM], env={**kept_variables(), "PYTHONSAFEPATH": "1"}, cwd="/",
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_STARTS_WITHIN_S, check=False, **as_user(uid),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        why = f"it does not start within {_STARTS_WITHIN_S:g} s"
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or str(error)
    else:
        missing = done.stdout.removeprefix(_MARK).split()
        if done.stdout.startswith(_MARK) and not missing:
            return
        said = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        why = (
            f"it has no {' and no '.join(missing)}" if done.stdout.startswith(_MARK)
            else f"it is no Python interpreter that works: {printable(said)[:200]}"
        )  # fmt: skip
    raise PenstockError(
        f"user {_name(uid)} cannot run cards with {python}",
        why,
        "name an interpreter that has penstock[torch] and that this user may reach and run with "
        "--card-python, or another user with --card-user",
    )


def _name(uid: int | None) -> str:
    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a user of a container
        return str(uid)
