"""`estimate_apart`: an estimate in a process of its own, since it runs the user's code."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.estimation.child import WHERE_SIGNAL
from penstock.model import PenstockError, format_duration

if TYPE_CHECKING:
    from penstock.estimation.question import Question

_ENDS_WITHIN_S = 5.0  # once it has answered; it runs the exit handlers of the user's code
_TELLS_WITHIN_S = 0.5  # where it is
_LOOKS_S = 60.0  # poll takes no more than some days
_KILLED_FIX = (
    "if nobody killed it, the kernel did, for want of memory (see dmesg): leave large data out of "
    "what is loaded, or use a machine or container with more memory"
)


@dataclass(frozen=True)
class Answer:
    """An estimate as text and as plain values."""

    lines: list[str]
    data: dict[str, Any]


def estimate_apart(question: Question, timeout_ns: int) -> Answer:
    """Answers a question in a child process, which may take `timeout_ns`.

    What the user's code prints goes to this process's standard error. The child and all that it
    started have ended when this returns or raises, also by Ctrl-C; if this process is killed, the
    child is, too.

    Raises:
        PenstockError: the estimate failed, or its process ended without an answer or took too long.
    """
    ours, theirs = os.pipe()
    try:
        child = _Child(question, theirs)
    finally:
        os.close(theirs)
    try:
        line = child.line(ours, time.monotonic() + timeout_ns / 1e9)
        is_late = not line and not child.has_ended(0)
        child.has_ended(_ENDS_WITHIN_S if line else 0)
        if is_late:
            child.tell_where()
    finally:
        status = child.end()
        os.close(ours)
    if is_late:
        raise PenstockError(
            f"estimating {question.model} took too long",
            f"there is no estimate after {format_duration(timeout_ns)}",
            "see above where the program is, or allow more time with --timeout", reason="timed-out",
        )  # fmt: skip
    if not line:
        no_answer = _no_answer(question.model, status)
        raise no_answer
    answer = json.loads(line)
    if "error" in answer:
        raise PenstockError(*answer["error"])
    return Answer(answer["lines"], answer["data"])


class _Child:
    """A child in a process group of its own, which writes its answer to the descriptor `theirs`."""

    def __init__(self, question: Question, theirs: int) -> None:
        command = [
            sys.executable, "-u", "-X", "faulthandler", "-m", "penstock.estimation.child",
            str(theirs), json.dumps(asdict(question)),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # from Python 3.11; see spawned cards
        # Unbuffered, so that what it printed is seen even if it dies. Without input, as a process
        # group in the background may not read a terminal.
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs],
            start_new_session=True,
        )  # fmt: skip
        self._pidfd = os.pidfd_open(self._process.pid)

    def line(self, ours: int, until_s: float) -> bytes:
        """The answer; empty if the child ended before, or has none in time.

        A child of the user's code may keep the pipe open, so the end of the pipe is not waited for.
        """
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        line = b""
        while (left_s := until_s - time.monotonic()) > 0:
            ready = dict(poll.poll(min(left_s, _LOOKS_S) * 1000))
            if ours in ready:
                part = os.read(ours, 1 << 16)
                line += part
                if line.endswith(b"\n"):
                    return line
                if not part:
                    poll.unregister(ours)
            elif ready:
                return b""
        return b""

    def has_ended(self, within_s: float) -> bool:
        """Whether the child ends in this time. It stays a zombie, whose number is not reused."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def tell_where(self) -> None:
        """Lets the child print its traceback."""
        self._process.send_signal(WHERE_SIGNAL)
        self.has_ended(_TELLS_WITHIN_S)

    def end(self) -> int:
        """Kills what is left of the group. Returns the child's status, as `Popen` does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        os.close(self._pidfd)
        return status


def _no_answer(model: str, status: int) -> PenstockError:
    """The error for a child that ended without an answer."""
    if status >= 0:
        return PenstockError(
            f"estimating {model} failed",
            f"its process ended with exit status {status} before there was an estimate",
            "see what it printed above, and leave out what ends the process, such as os._exit()",
        )
    return PenstockError(
        f"estimating {model} failed",
        f"its process was killed by signal {-status} ({signal.strsignal(-status)})",
        _KILLED_FIX if -status == signal.SIGKILL
        else "see above where the program was, and correct or leave out what failed there",
    )  # fmt: skip
