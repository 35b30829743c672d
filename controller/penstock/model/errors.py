"""`PenstockError`, the error shown to users: what failed, why, and what to do next."""

from __future__ import annotations

from typing import Literal

# Machine-readable reasons; `invalid` covers every mistake in a request.
Reason = Literal[
    "invalid",
    "no-such-tenant",
    "exists",
    "not-enough-left",
    "not-yours",
    "not-allowed",
    "not-now",
    "timed-out",
    "unavailable",
]


class PenstockError(Exception):
    """An error that the user can correct. The command line prints it and exits with 2.

    `what` names what failed, `why` the cause and `fix` what to do, each as one sentence without a
    full stop.
    """

    def __init__(
        self, what: str, why: str = "", fix: str = "", *, reason: Reason = "invalid"
    ) -> None:
        self.what = what
        self.why = why
        self.fix = fix
        self.reason: Reason = reason
        super().__init__(what)

    def __str__(self) -> str:
        text = f"{self.what}: {self.why}" if self.why else self.what
        return f"{text}; {self.fix}" if self.fix else text
