"""The error that reaches a person: what happened, why, and what to do next."""

from __future__ import annotations

from typing import Literal

# Words for programs; `invalid` is whatever a request got wrong.
Reason = Literal[
    "invalid",
    "no-such-tenant",
    "exists",
    "not-enough-left",
    "not-yours",
    "not-allowed",
    "not-now",
    "unavailable",
]


class PenstockError(Exception):
    """Something that the user can put right. The command line prints it and exits with 2.

    `what` happened, `why` it did, and what to do (`fix`): each one sentence without a full stop.
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
