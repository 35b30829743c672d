"""Agent locks: one agent for each node and each state directory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from penstock.model import PenstockError
from penstock.node.tenants.lock import take

ROOTS = Path("/run/penstock-agent.lock")


def take_node(file: Path, held: str) -> int:
    """Takes the lock as `lock.take` does, and writes our pid into the lock file.

    `held`: the first part of the error message if another process holds the lock.

    Raises:
        PenstockError: another process holds the lock.
    """
    try:
        descriptor = take(file)
    except BlockingIOError:
        pid = holder(file)
        raise PenstockError(
            held, f"pid {pid} holds {file}" if pid else f"another process holds {file}",
            f"stop that agent first{f' (kill {pid})' if pid else ''}",
            reason="not-now",
        ) from None  # fmt: skip
    with contextlib.suppress(OSError):  # on a full disk the file does not name the holder
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holder(file: Path) -> int | None:
    """The pid that the lock's holder wrote into the file, None if the file has no pid."""
    try:
        with file.open("rb") as stream:
            text = stream.read(32).decode(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def node_lock() -> Path:
    """The lock file for the node's real devices: one for root, one for each other user.

    $PENSTOCK_NODE_LOCK names another file, which lets several nodes share one /run.
    """
    named = os.environ.get("PENSTOCK_NODE_LOCK")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return ROOTS
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime or "/tmp") / f"penstock-agent-{os.geteuid()}.lock"  # noqa: S108
