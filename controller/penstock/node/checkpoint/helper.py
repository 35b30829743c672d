"""Checkpoint helper: locks, checkpoints, restores and unlocks the CUDA state of other processes.

`python -m penstock.node.checkpoint.helper` reads one JSON object from each line of its standard
input, {"id": 1, "order": "lock", "pid": 42, "timeout_ms": 1000}, and prints one answer for each,
{"id": 1, "answer": "locked"} or {"id": 1, "error": "…", "kind": "…"}. Orders run at the same time,
so that answers may come in another order. The helper ends with its input, and so with its agent.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

# Kinds of errors.
NOT_CUDA = "not-cuda"  # the process has not begun to use CUDA, or has ended
BUSY = "busy"  # not possible in the process's state: another order may be carried out
LATE = "late"  # work of the process went on for longer than the lock may wait
UNSUPPORTED = "unsupported"
MISSING = "missing"  # the package cuda.core
REFUSED = "refused"

_KINDS = (
    ("CUDA_ERROR_ILLEGAL_STATE", BUSY),
    ("CUDA_ERROR_NOT_READY", LATE),
    ("is not supported by the installed", UNSUPPORTED),  # how cuda.core words NOT_SUPPORTED
    ("No module named", MISSING),
)
_NOT_CUDA = ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_INITIALIZED", "CUDA_ERROR_INVALID_CONTEXT")


def main() -> None:
    """Serves orders until the end of the input."""
    printing = threading.Lock()
    for line in sys.stdin:
        threading.Thread(target=_serve, args=(json.loads(line), printing), daemon=True).start()


def _serve(request: dict[str, Any], printing: threading.Lock) -> None:
    try:
        reply: dict[str, Any] = {"answer": _carry_out(request)}
    except Exception as error:  # noqa: BLE001 - whatever is said is the answer
        text = " ".join(str(error).split()) or type(error).__name__
        reply = {"error": text, "kind": _kind(request["order"], text)}
    with printing:
        print(json.dumps({"id": request["id"], **reply}), flush=True)


def _kind(order: str, text: str) -> str:
    if order == "state" and any(name in text for name in _NOT_CUDA):
        return NOT_CUDA
    return next((kind for words, kind in _KINDS if words in text), REFUSED)


def _carry_out(request: dict[str, Any]) -> str:
    from cuda.core.checkpoint import Process

    process = Process(request["pid"])
    order = request["order"]
    if order == "lock":
        process.lock(timeout_ms=request["timeout_ms"])
    elif order == "checkpoint":
        process.checkpoint()
    elif order == "restore":
        process.restore(request["mapping"] or None)
    elif order == "unlock":
        process.unlock()
    elif order != "state":
        raise ValueError(f"unknown order {order!r}")
    return str(process.state)


if __name__ == "__main__":
    main()
