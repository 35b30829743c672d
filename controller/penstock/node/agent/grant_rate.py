"""How fast one person is granted tenants: each one takes files, descriptors and rows of history."""

from __future__ import annotations

import time

from penstock.model import PenstockError

AT_ONCE = 64  # by somebody who has asked for none for a while …
A_SECOND = 4.0  # … and from then on
MOST_PEOPLE = 4096  # remembered: who is forgotten first has asked least lately


class GrantRate:
    """A bucket of tokens for each person, and who gets none for a while."""

    def __init__(self) -> None:
        self._full_at_s: dict[int | str, float] = {}  # time.monotonic()
        self._shut_out: dict[int | str, float] = {}  # until when

    def take(self, person: int | str) -> None:
        """Takes one. Raises `PenstockError` where there is none."""
        now_s = time.monotonic()
        until_s = self._shut_out.get(person, 0.0)
        if until_s > now_s:
            raise PenstockError(
                f"nothing is granted to this user for another {until_s - now_s:.0f} s",
                "a tenant of theirs made its usage page grow again and again",
                "see penstock events of that tenant; an administrator is not bound by this",
                reason="not-allowed",
            )
        full_s = max(now_s, self._full_at_s.pop(person, now_s)) + 1 / A_SECOND
        wait_s = full_s - now_s - AT_ONCE / A_SECOND
        if wait_s > 0:
            self._full_at_s[person] = full_s - 1 / A_SECOND
            raise PenstockError(
                f"too many tenants are asked for at once: {AT_ONCE}, then {A_SECOND:g} a second, "
                "are granted to a user", "each takes room that all users share",
                f"ask again in {max(1, round(wait_s))} s", reason="not-now",
            )  # fmt: skip
        self._full_at_s[person] = full_s
        while len(self._full_at_s) > MOST_PEOPLE:
            del self._full_at_s[next(iter(self._full_at_s))]

    def shut_out(self, person: int | str, for_ns: int) -> None:
        """Gives none for so long."""
        now_s = time.monotonic()
        self._shut_out = {who: s for who, s in self._shut_out.items() if s > now_s}
        self._shut_out[person] = now_s + for_ns / 1e9
