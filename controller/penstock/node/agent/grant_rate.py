"""Rate limit of grants per person: each takes files, descriptors and rows of history."""

from __future__ import annotations

import time

from penstock.model import PenstockError

AT_ONCE = 64  # burst, after a time without requests …
A_SECOND = 4.0  # … and the sustained rate
MOST_PEOPLE = 4096  # remembered; the least recent is forgotten first


class GrantRate:
    """A token bucket for each person, and the persons that are blocked for a while."""

    def __init__(self) -> None:
        self._full_at_s: dict[int | str, float] = {}  # time.monotonic()
        self._shut_out: dict[int | str, float] = {}  # until when

    def take(self, person: int | str) -> None:
        """Takes a token. Raises `PenstockError` where there is none."""
        now_s = time.monotonic()
        until_s = self._shut_out.get(person, 0.0)
        if until_s > now_s:
            raise PenstockError(
                f"this user gets no grant for another {until_s - now_s:.0f} s",
                "one of the user's tenants repeatedly made its usage page grow",
                "see penstock events of that tenant; administrators are exempt",
                reason="not-allowed",
            )
        full_s = max(now_s, self._full_at_s.pop(person, now_s)) + 1 / A_SECOND
        wait_s = full_s - now_s - AT_ONCE / A_SECOND
        if wait_s > 0:
            self._full_at_s[person] = full_s - 1 / A_SECOND
            raise PenstockError(
                f"too many grants at once: a user may have {AT_ONCE}, then {A_SECOND:g} a second",
                "each takes space that all users share",
                f"try again in {max(1, round(wait_s))} s", reason="not-now",
            )  # fmt: skip
        self._full_at_s[person] = full_s
        while len(self._full_at_s) > MOST_PEOPLE:
            del self._full_at_s[next(iter(self._full_at_s))]

    def shut_out(self, person: int | str, for_ns: int) -> None:
        """Blocks the person for `for_ns`."""
        now_s = time.monotonic()
        self._shut_out = {who: s for who, s in self._shut_out.items() if s > now_s}
        self._shut_out[person] = now_s + for_ns / 1e9
