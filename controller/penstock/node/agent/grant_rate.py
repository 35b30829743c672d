"""Rate limit of grants per person, as each grant takes files, descriptors and history rows."""

from __future__ import annotations

import time

from penstock.model import PenstockError

AT_ONCE = 64  # grants in a burst, after a time without requests …
A_SECOND = 4.0  # … and grants per second in the long run
MOST_PEOPLE = 4096  # remembered; the person whose last grant is oldest is forgotten first


class GrantRate:
    """One token bucket for each person, and the people who are temporarily blocked."""

    def __init__(self) -> None:
        self._full_at_s: dict[int | str, float] = {}  # time.monotonic()
        self._shut_out: dict[int | str, float] = {}  # end of each block, time.monotonic()

    def take(self, person: int | str) -> None:
        """Takes a token. Raises `PenstockError` if none is left or the person is blocked."""
        now_s = time.monotonic()
        until_s = self._shut_out.get(person, 0.0)
        if until_s > now_s:
            raise PenstockError(
                f"this user can get no grant for another {until_s - now_s:.0f} s",
                "one of the user's tenants repeatedly made its usage page grow",
                "wait, or ask an administrator; penstock events shows which tenant it was",
                reason="not-allowed",
            )
        full_s = max(now_s, self._full_at_s.pop(person, now_s)) + 1 / A_SECOND
        wait_s = full_s - now_s - AT_ONCE / A_SECOND
        if wait_s > 0:
            self._full_at_s[person] = full_s - 1 / A_SECOND
            raise PenstockError(
                "too many grants at once",
                f"a user may have {AT_ONCE} at once, and then {A_SECOND:g} a second, because each "
                "takes space that all users share",
                f"try again in {max(1, round(wait_s))} s", reason="not-now",
            )  # fmt: skip
        self._full_at_s[person] = full_s
        while len(self._full_at_s) > MOST_PEOPLE:
            del self._full_at_s[next(iter(self._full_at_s))]

    def shut_out(self, person: int | str, for_ns: int) -> None:
        """Refuses the person all grants for `for_ns`."""
        now_s = time.monotonic()
        self._shut_out = {who: s for who, s in self._shut_out.items() if s > now_s}
        self._shut_out[person] = now_s + for_ns / 1e9
