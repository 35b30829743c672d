"""Who runs a node: locks that the kernel drops with their holder, and that name it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from penstock.model import PenstockError
from penstock.node.tenants.lock import take

ROOTS = Path("/run/penstock-agent.lock")


def take_node(file: Path, held: str) -> int:
    """As `take`, and leaves the holder's pid there. Raises `PenstockError` if another has it.

    `held`: what that means.
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
    with contextlib.suppress(OSError):  # on a full disk nobody is named
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holder(file: Path) -> int | None:
    """The pid that the file's holder has left; None: it has left none."""
    try:
        with file.open("rb") as stream:
            text = stream.read(32).decode(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def node_lock() -> Path:
    """Of the agent on the node's real devices: root's, or of a user who only has their own.

    $PENSTOCK_NODE_LOCK names another one, for several nodes that share a /run.
    """
    named = os.environ.get("PENSTOCK_NODE_LOCK")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return ROOTS
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime or "/tmp") / f"penstock-agent-{os.geteuid()}.lock"  # noqa: S108
