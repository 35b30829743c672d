"""A look at the pages of many tenants at once, in one native call a round.

It renews heartbeats and tells whose usage page is worth a closer look; most are not, most of the
time.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from typing import TYPE_CHECKING, NamedTuple

from penstock_shim._native import ffi, lib
from penstock_shim.recent import RecentUse

if TYPE_CHECKING:
    from penstock_shim._native import CData
    from penstock_shim.pages import QuotaWriter, UsagePage


# Descriptors of processes: of the files that this process may open, one in so many.
MOST_WATCHED = 16384
WATCHED_OF_FILES = 4


class Part:
    """One tenant in a survey: what the last look at it told."""

    def __init__(self) -> None:
        self.words: CData = ffi.new("penstock_survey_entry *", {"usage_fd": -1})

    def watch(self, usage: UsagePage | None, devices: int = 0) -> None:
        """Looks at this page from now on, at its first `devices` devices; it is to stay open."""
        self.words.usage_fd = -1 if usage is None else usage.fileno()
        self.words.devices = devices
        self.words.digest = self.words.notable = self.words.told = self.words.quiet = 0

    def tell_again(self) -> None:
        """The next look lists it as stirred, whether there is anything new in it or not."""
        self.words.told = 0

    def use(self, device: int) -> RecentUse:
        """Recent use of the device at this index of the grant; goes on with each look."""
        return RecentUse(self.words, self.words.use[device])

    @property
    def digest(self) -> int:
        """Another number whenever anything in the page is new; 0: it cannot be read."""
        return int(self.words.digest)

    @property
    def notable(self) -> int:
        """Another number for new refusals, names asked for, and processes come or gone."""
        return int(self.words.notable)

    @property
    def slots(self) -> int:
        """How many processes it has, by its page."""
        return int(self.words.slots)

    @property
    def gone(self) -> int:
        """How many slots there are to be reaped, as far as this pid namespace tells."""
        return int(self.words.gone)

    @property
    def active(self) -> bool:
        """Whether it had work in the last second, or waited lately, on any device."""
        return bool(self.words.active)


class Found(NamedTuple):
    """What a look found."""

    stirred: list[Part]
    """With something to act on: a new `notable`, slots to be reaped, a page that cannot be read."""
    active: list[Part]


class Survey:
    """Parts of tenants. `look` is one thread's; the rest may be called from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the pages that are written to
        self._parts: list[Part] = []
        self._array = ffi.new("penstock_survey_entry *[]", 0)
        self._found = ffi.new("penstock_survey_found *")
        self._stirred = self._active = ffi.new("uint32_t[]", 0)
        self._room = ffi.new("penstock_usage_page *")
        self._round = 0
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_watched = MOST_WATCHED
        if files != resource.RLIM_INFINITY:
            self._most_watched = min(MOST_WATCHED, files // WATCHED_OF_FILES)

    def add(self, part: Part) -> None:
        """Looks at `part` from the next round on."""
        with self._lock:
            self._parts.append(part)
            self._lay_out()

    def remove(self, part: Part) -> None:
        """Forgets `part`; its pages may be closed afterwards. May be called twice."""
        with self._lock:
            with contextlib.suppress(ValueError):
                self._parts.remove(part)
            lib.penstock_survey_forget(part.words)
            self._lay_out()

    def beat(self, part: Part, quota: QuotaWriter) -> None:
        """Renews the heartbeat of `quota` in each round; end that with `close_quota`."""
        with self._lock:
            part.words.quota = quota.words()

    def close_quota(self, quota: QuotaWriter) -> None:
        """Closes a page whose heartbeat may be renewed here."""
        with self._lock:
            words = quota.words()
            for part in self._parts:
                if part.words.quota == words:
                    part.words.quota = ffi.NULL
            quota.close()

    def look(self, now_ns: int) -> Found:
        """One round at CLOCK_MONOTONIC `now_ns`."""
        with self._lock:
            self._round = (self._round + 1) & 0xFFFFFFFF
            parts, found = self._parts, self._found
            lib.penstock_survey(
                self._array,
                len(parts),
                self._room,
                now_ns,
                self._round,
                self._most_watched,
                found,
            )
            return Found(
                [parts[i] for i in self._stirred[0 : found.stirred_count]],
                [parts[i] for i in self._active[0 : found.active_count]],
            )

    def _lay_out(self) -> None:
        self._array = ffi.new("penstock_survey_entry *[]", [part.words for part in self._parts])
        self._stirred = ffi.new("uint32_t[]", len(self._parts))
        self._active = ffi.new("uint32_t[]", len(self._parts))
        self._found.stirred, self._found.active = self._stirred, self._active
