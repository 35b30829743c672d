"""Agent locks: one agent per node and state directory. The lock file names the holder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from penstock.model import PenstockError
from penstock.node.tenants.lock import take

ROOTS = Path("/run/penstock-agent.lock")


def take_node(file: Path, held: str) -> int:
    """Takes the lock like `take`, and writes our pid into it. Raises `PenstockError` if held.

    `held`: the first part of that error.
    """
    try:
        descriptor = take(file)
    except BlockingIOError:
        pid = holder(file)
        raise PenstockError(
            held, f"pid {pid} holds {file}" if pid else f"another process holds {file}",
            f"stop it first{f' (kill {pid})' if pid else ''}: a node has one agent",
            reason="not-now",
        ) from None  # fmt: skip
    with contextlib.suppress(OSError):  # on a full disk the holder stays unnamed
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holder(file: Path) -> int | None:
    """The pid that the lock's holder wrote into the file; None: there is none."""
    try:
        with file.open("rb") as stream:
            text = stream.read(32).decode(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def node_lock() -> Path:
    """The lock file for the node's real devices: root's, or one per user for other users.

    $PENSTOCK_NODE_LOCK names another file, for several nodes that share a /run.
    """
    named = os.environ.get("PENSTOCK_NODE_LOCK")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return ROOTS
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime or "/tmp") / f"penstock-agent-{os.geteuid()}.lock"  # noqa: S108
