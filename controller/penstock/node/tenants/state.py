"""The state directory: tenants, simulated machines, the admission lock and the agent's sockets."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.tenants.lock import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


def default_directory() -> Path:
    """`$PENSTOCK_STATE_DIR`, else /run/penstock for root, else the user's runtime directory."""
    named = os.environ.get("PENSTOCK_STATE_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/run/penstock")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "penstock" if runtime else Path(f"/tmp/penstock-{os.getuid()}")  # noqa: S108


class State:
    """An open state directory: owned by this user and not writable by others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tenants = directory / "tenants"
        self.machines = directory / "machines"

    @classmethod
    def open(cls, directory: Path | None = None, *, shared: bool = False) -> State:
        """Opens the directory, and creates it if missing.

        `shared`: other users have tenants there; they may enter and see their own tenants. Raises
        `PenstockError` if the directory cannot be trusted.
        """
        state = cls(_absolute(directory or default_directory()))
        for folder in (state.directory, state.tenants, state.machines):
            _own_folder(folder)
            if shared:
                folder.chmod(0o711)
        return state

    @classmethod
    def read(cls, directory: Path | None = None) -> State:
        """Opens the directory for commands that only read; creates nothing.

        A missing default directory means that there are no tenants. Raises `PenstockError` if the
        named `directory` is missing or cannot be trusted.
        """
        state = cls(_absolute(directory or default_directory()))
        if os.path.lexists(state.directory):
            for folder in (state.directory, state.tenants, state.machines):
                if os.path.lexists(folder):
                    _check_own(folder)
        elif directory is not None:
            raise PenstockError(
                f"there is no state directory {state.directory}",
                "no penstock run has used it",
                "check its spelling, or leave --state-dir out to see the default one",
            )
        return state

    @property
    def agent_lock(self) -> Path:
        """The lock that the agent of this directory holds."""
        return self.directory / "agent.lock"

    @property
    def agent_socket(self) -> Path:
        """The socket at which the agent takes orders."""
        return self.directory / "agent.sock"

    @property
    def admin_socket(self) -> Path:
        """The agent's socket for administrators, in a directory that nobody else may enter."""
        return self.directory / ".agent" / "agent.sock"

    def is_shared(self) -> bool:
        """Whether other users have tenants here: `open` was once called with `shared`."""
        return bool(self.machines.stat().st_mode & 0o001)

    def has_agent(self) -> bool:
        """Whether an agent owns this directory now."""
        return is_locked(self.agent_lock)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """The admission lock: one process at a time decides about grants.

        The kernel drops the lock of a killed process.
        """
        with locked(self.directory / "lock"):
            yield


SYSTEM_DIRECTORY = Path("/run/penstock")  # of the agent that serves all users of a node


def agent_sockets(directory: Path | None) -> list[Path]:
    """Agent sockets that exist: of `directory`, else of the user's own and the system's agent."""
    named = State(directory or default_directory()).agent_socket
    system = State(SYSTEM_DIRECTORY).agent_socket
    found = [named] if directory or os.environ.get("PENSTOCK_STATE_DIR") else [named, system]
    return [file for file in dict.fromkeys(found) if file.exists()]


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Exclusive flock on `file`, which is created if missing."""
    descriptor = wait_for(file)
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(file: Path) -> bool:
    """Whether a process holds an flock on `file`; False if the file is missing."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _absolute(named: Path) -> Path:
    try:
        return named.absolute()
    except FileNotFoundError as error:
        raise PenstockError(
            f"cannot find the state directory {named}",
            "it is relative to the current directory, which was removed",
            "name it by an absolute path, or change to another directory",
        ) from error


def _own_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error
    _check_own(folder)


def _unusable(folder: Path, error: OSError) -> PenstockError:
    return PenstockError(
        f"cannot use {folder} as a state directory",
        error.strerror or str(error),
        "name another one with --state-dir or $PENSTOCK_STATE_DIR",
    )


def _check_own(folder: Path) -> None:
    try:
        found = folder.lstat()
    except OSError as error:
        raise _unusable(folder, error) from error
    if found.st_uid == 0 != os.geteuid() and (folder / "agent.sock").exists():
        raise PenstockError(
            f"{folder} belongs to the node's agent, which does not answer",
            "it is being started, or it was stopped",
            "ask an administrator (systemctl status penstock-agent), or try again",
            reason="unavailable",
        )
    # Another user's directory under a guessable name could feed us forged quota pages.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PenstockError(
            f"{folder} cannot be trusted as a state directory",
            "it is not a directory that this user owns and only this user can write",
            "name another one with --state-dir or $PENSTOCK_STATE_DIR",
        )
