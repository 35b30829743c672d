"""The state directory: tenants, simulated machines, admission lock and agent sockets."""

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
    """$PENSTOCK_STATE_DIR; if unset, /run/penstock for root, else a folder of the user's."""
    named = os.environ.get("PENSTOCK_STATE_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/run/penstock")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "penstock" if runtime else Path(f"/tmp/penstock-{os.getuid()}")  # noqa: S108


class State:
    """An open state directory, owned by this user and writable by nobody else."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tenants = directory / "tenants"
        self.machines = directory / "machines"

    @classmethod
    def open(cls, directory: Path | None = None, *, shared: bool = False) -> State:
        """Opens the directory, creating it if missing.

        `shared`: other users have tenants in it, so they may enter it and see their own tenants.

        Raises:
            PenstockError: the directory cannot be trusted.
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

        If the default directory is missing, there are no tenants.

        Raises:
            PenstockError: the named `directory` is missing or cannot be trusted.
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
                "check its spelling, or leave --state-dir out to use the default directory",
            )
        return state

    @property
    def agent_lock(self) -> Path:
        """The lock held by the agent of this directory."""
        return self.directory / "agent.lock"

    @property
    def agent_socket(self) -> Path:
        """The socket at which the agent accepts requests."""
        return self.directory / "agent.sock"

    @property
    def admin_socket(self) -> Path:
        """The agent's socket for administrators, in a directory that only they may enter."""
        return self.directory / ".agent" / "agent.sock"

    def is_shared(self) -> bool:
        """Whether other users have tenants here, because `open` was once called with `shared`."""
        return bool(self.machines.stat().st_mode & 0o001)

    def has_agent(self) -> bool:
        """Whether an agent owns this directory now."""
        return is_locked(self.agent_lock)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """The admission lock, with which only one process at a time decides about grants.

        The kernel releases the lock if the process is killed.
        """
        with locked(self.directory / "lock"):
            yield


SYSTEM_DIRECTORY = Path("/run/penstock")  # used by the agent that serves all users of a node


def agent_sockets(directory: Path | None) -> list[Path]:
    """Existing agent sockets: of `directory`, or else of the user's and the system's agents."""
    named = State(directory or default_directory()).agent_socket
    system = State(SYSTEM_DIRECTORY).agent_socket
    found = [named] if directory or os.environ.get("PENSTOCK_STATE_DIR") else [named, system]
    return [file for file in dict.fromkeys(found) if file.exists()]


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds an exclusive flock on `file`, which is created if missing."""
    descriptor = wait_for(file)
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(file: Path) -> bool:
    """Whether a process holds an flock on `file`; False if the file does not exist."""
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
            "name an absolute path, or change to another directory",
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
        "name another directory with --state-dir or $PENSTOCK_STATE_DIR",
    )


def _check_own(folder: Path) -> None:
    try:
        found = folder.lstat()
    except OSError as error:
        raise _unusable(folder, error) from error
    if found.st_uid == 0 != os.geteuid() and (folder / "agent.sock").exists():
        raise PenstockError(
            f"{folder} belongs to the node's agent, which does not respond",
            "the agent is still starting, or it was stopped",
            "try again, or ask an administrator to check it (systemctl status penstock-agent)",
            reason="unavailable",
        )
    # Another user's directory with a predictable name could contain forged quota pages.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PenstockError(
            f"{folder} cannot be trusted as a state directory",
            "it is not a directory that this user owns and that only this user can write to",
            "name another directory with --state-dir or $PENSTOCK_STATE_DIR",
        )
