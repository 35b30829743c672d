"""Polling of many tenants' pages, by one native call in each iteration of the reconcile loop.

The call renews heartbeats and finds the usage pages that need a full read, which are usually few.
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


# Limits on process descriptors: a number, and a fraction of the files that this process may open.
MOST_WATCHED = 16384
WATCHED_OF_FILES = 4


class Part:
    """One tenant in a survey, with the results of its last sample."""

    def __init__(self) -> None:
        self.words: CData = ffi.new("penstock_survey_entry *", {"usage_fd": -1})

    def watch(self, usage: UsagePage | None, devices: int = 0) -> None:
        """Polls the first `devices` devices of this page from now on. The page must stay open."""
        self.words.usage_fd = -1 if usage is None else usage.fileno()
        self.words.devices = devices
        self.words.digest = self.words.notable = self.words.told = self.words.quiet = 0

    def tell_again(self) -> None:
        """Makes the next sample list this tenant as stirred, even if nothing has changed."""
        self.words.told = 0

    def use(self, device: int) -> RecentUse:
        """Returns the recent use of the grant's device number `device`; each sample updates it."""
        return RecentUse(self.words, self.words.use[device])

    @property
    def digest(self) -> int:
        """A number that changes with any change of the page, 0 if the page cannot be read."""
        return int(self.words.digest)

    @property
    def notable(self) -> int:
        """A number that changes with new refusals, requested names, and new or ended processes."""
        return int(self.words.notable)

    @property
    def slots(self) -> int:
        """The number of the tenant's processes according to its page."""
        return int(self.words.slots)

    @property
    def gone(self) -> int:
        """The number of slots to be reaped, as seen from this pid namespace."""
        return int(self.words.gone)

    @property
    def active(self) -> bool:
        """Whether the tenant had work in the last second, or waited recently, on any device."""
        return bool(self.words.active)


class Found(NamedTuple):
    """Result of one sample."""

    stirred: list[Part]
    """Tenants that need action: a new `notable`, slots to be reaped, or an unreadable page."""
    active: list[Part]


class Survey:
    """A set of tenants to poll. Only one thread may call `look`; any thread may call the rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the pages that are written to
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
        """Polls `part` from the next iteration on."""
        with self._lock:
            self._parts.append(part)
            self._lay_out()

    def remove(self, part: Part) -> None:
        """Stops polling `part`; its pages may be closed afterwards. May be called twice."""
        with self._lock:
            with contextlib.suppress(ValueError):
                self._parts.remove(part)
            lib.penstock_survey_forget(part.words)
            self._lay_out()

    def beat(self, part: Part, quota: QuotaWriter) -> None:
        """Renews the heartbeat of `quota` in each iteration, until `close_quota`."""
        with self._lock:
            part.words.quota = quota.words()

    def close_quota(self, quota: QuotaWriter) -> None:
        """Closes a quota page and stops renewing its heartbeat."""
        with self._lock:
            words = quota.words()
            for part in self._parts:
                if part.words.quota == words:
                    part.words.quota = ffi.NULL
            quota.close()

    def look(self, now_ns: int) -> Found:
        """Samples all tenants once. `now_ns` is the CLOCK_MONOTONIC time."""
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
