"""A helper that stays: it makes the calls of `cuda.core.checkpoint` that its input names.

Each line is a call with a process, and its further arguments: "lock PID MILLISECONDS",
"checkpoint PID", "restore PID [OLD=NEW …]", "unlock PID", "state PID". Each answer is one line: the
state, "done", or the error.
"""

from __future__ import annotations

import sys

from cuda.core import checkpoint


def call(words: list[str]) -> str:
    name, pid, *rest = words
    process = checkpoint.Process(int(pid))
    if name == "state":
        return process.state
    if name == "thread":
        return str(process.restore_thread_id)
    if name == "lock":
        process.lock(timeout_ms=int(rest[0]))
    elif name == "restore":
        process.restore(dict(pair.split("=") for pair in rest) or None)
    else:
        getattr(process, name)()
    return "done"


def answer(line: str) -> str:
    try:
        return call(line.split())
    except Exception as error:  # noqa: BLE001 - the answer of this call
        return f"{type(error).__name__} {error}".replace("\n", " ")


for line in sys.stdin:
    print(answer(line), flush=True)
