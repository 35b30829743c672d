"""`python -m penstock.estimation.child DESCRIPTOR QUESTION`: the process of `estimate_apart`.

It writes one line of JSON to the descriptor: the estimate, or an error that the user can correct.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
from typing import Any

from penstock.estimation.question import Question
from penstock.model import PenstockError, QuantityError

WHERE_SIGNAL = signal.SIGUSR1  # asks for the traceback, if the user's code hangs
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answers the question. What the user's code prints goes where this process prints."""
    descriptor, question = int(sys.argv[1]), Question(**json.loads(sys.argv[2]))
    os.set_inheritable(descriptor, False)
    _end_with_parent(descriptor)
    faulthandler.register(WHERE_SIGNAL)
    os.environ.pop("PYTHONSAFEPATH", None)  # was meant for this process, not for its children
    sys.argv = [question.model.rpartition(":")[0] or question.model]  # as `python train.py` has it
    line = json.dumps(_answer(question)).encode() + b"\n"
    while line:
        line = line[os.write(descriptor, line) :]


def _answer(question: Question) -> dict[str, Any]:
    try:
        found = question.answer()
    except PenstockError as error:
        return {"error": [error.what, error.why, error.fix]}
    except QuantityError as error:
        return {"error": [str(error), "", ""]}
    except OSError as error:
        why = error.strerror or str(error)
        what = f"cannot read {error.filename or question.model}"
        return {"error": [what, why, "check the file and its permissions"]}
    return {"lines": found.lines(), "data": found.data()}


def _end_with_parent(descriptor: int) -> None:
    """The kernel sends SIGKILL to this process when the command that started it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    parent = select.poll()
    parent.register(descriptor, 0)
    if parent.poll(0):  # nobody reads: the parent has ended before
        os._exit(1)


if __name__ == "__main__":
    main()
