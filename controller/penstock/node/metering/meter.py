"""Meter: takes readings about ten times a second, and stores tenants' use every ten seconds."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.node.metering.account import Account, Step, Suspicion, first, following, is_older
from penstock.node.metering.batch import Batch, Key
from penstock.node.metering.clock import Moment, now
from penstock.node.metering.metered_amounts import NS, Amounts
from penstock.node.metering.retention import Retention
from penstock.node.metering.store import default_directory
from penstock.node.metering.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.node.metering.reading import DeviceReading, Identity, TenantReading

COUNT_PERIOD_NS = NS  # in between, the last reading suffices, as the counter is cumulative
REPEAT_NS = 60 * NS  # time before a persistent suspicion is reported again
COMPARE_NS = 60 * NS  # the longest interval for comparing measured with charged device time
# Both must be exceeded, because charges are based on learned costs and come before or after the
# work.
UNCHARGED_NS = 5 * NS
UNCHARGED_TIMES = 1.5
AGAIN_S = 0.2
FORGET_NS = 600 * NS  # a tenant without readings is dropped after this; its stored use stays


@dataclass(frozen=True)
class TenantSuspicion:
    """A suspicious value in a usage page, for the tenant's events."""

    tenant: str
    incarnation: str
    suspicion: Suspicion


@dataclass(frozen=True)
class MeterHealth:
    """Whether the meter keeps up with storing its readings."""

    behind_s: float  # age of the oldest reading not yet stored
    pending_rows: int
    failures: int  # failed commits since the meter started
    problem: str | None  # why the last commit failed, if it did
    damaged: tuple[Path, ...]  # stores that were set aside since the meter started


@dataclass
class _Open:
    """One tenant on one device, while it is being metered."""

    who: Identity
    account: Account | None = None  # None until the stored account is known
    opening: tuple[Moment, DeviceReading] | None = None  # the first reading, while that is so
    kept: tuple[Moment, DeviceReading] | None = None  # the newest reading, if not counted yet
    away: bool = False  # whether the meter was off after the account's reading
    total: Amounts = field(default_factory=Amounts)  # since the meter started
    told_ns: dict[str, int] = field(default_factory=dict)  # last report of each kind of suspicion
    compared_ns: int = 0  # start of the interval for comparing measured with charged time …
    compared: Amounts = field(default_factory=Amounts)  # … and the total at that time

    def as_charged(self, measured: DeviceReading) -> DeviceReading:
        """A reading without a page, completed with the last known charges."""
        newest = self.kept or self.opening
        before = newest[1] if newest else self.account
        return dataclasses.replace(
            measured,
            spent_ns=(before and before.spent_ns) or 0,
            total_bytes=before.total_bytes if before else 0,
        )


class Meter:
    """Meters tenants' use. Only one thread may call it; its own writer thread stores the amounts.

    If the agent is killed, the next meter in the same directory continues from what was stored. It
    accounts for device time to the nanosecond; for memory over time, the gap is estimated and
    marked as estimated.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        retention: Retention | None = None,
        at: Moment | None = None,
    ) -> None:
        """Meters into `directory`, by default `default_directory()`, which is created if missing.

        Raises:
            PenstockError: another process meters into the directory, it is not writable, or a newer
                release wrote it. A full disk is not an error.
        """
        self.directory = directory or default_directory()
        self._writer = Writer(self.directory, retention or Retention())
        self._open: dict[Key, _Open] = {}
        self._batch = Batch()
        self._ending: set[Key] = set()  # closed but not stored yet
        self._found: list[TenantSuspicion] = []
        self._stored_to_ns = self._handed_to_ns = (at or now()).mono_ns

    def observe(self, at: Moment, readings: Iterable[TenantReading]) -> list[TenantSuspicion]:
        """Counts readings of usage pages at `at`; ignores readings that are not newer."""
        for reading in readings:
            for device in reading.devices:
                self._take(at, reading.identity, device)
        found, self._found = self._found, []
        return found

    def flush(self, at: Moment, wait_s: float = 0.0) -> bool:
        """Passes the observed amounts to the writer thread.

        Returns whether all of them are stored after about `wait_s` seconds. If not, they are kept
        and storing them is retried, without any action by the caller.
        """
        while True:
            for key, one in self._open.items():
                self._count_kept(key, one)
            if self._writer.idle:
                self._settle(at)
                if not self._batch:
                    if any(one.account is None for one in self._open.values()):
                        return False  # some stored accounts are not known yet
                    self._stored_to_ns = max(self._stored_to_ns, at.mono_ns)
                    return True
                if self._writer.submit(self._batch):
                    self._batch, self._handed_to_ns = Batch(), at.mono_ns
            if not wait_s or not self._writer.wait(wait_s):
                return False

    def close_tenant(
        self, at: Moment, reading: TenantReading, wait_s: float = 0.5
    ) -> tuple[bool, list[TenantSuspicion]]:
        """Counts the last reading of a tenant whose processes are gone.

        Returns whether the reading is stored, and any suspicions. Only remove the tenant's usage
        page once it is stored, because until then the page is the record. On a full disk the agent
        may give up waiting; use since the last commit is then lost if the agent is killed before
        there is space. To close several tenants at once, set `wait_s` to 0, and remove their pages
        after `flush` has returned True.
        """
        for device in reading.devices:
            self._take(at, reading.identity, device)
        incarnation = reading.identity.incarnation
        for device in reading.devices:
            key = (incarnation, device.device_uuid)
            self._count_kept(key, self._open[key])
            self._ending.add(key)
        stored = self.flush(at, wait_s)
        found, self._found = self._found, []
        return stored, found

    def used(self, incarnation: str, device_uuid: str) -> Amounts:
        """A tenant's use of a device since this meter started, for counters."""
        one = self._open.get((incarnation, device_uuid))
        return Amounts() if one is None else dataclasses.replace(one.total)

    def health(self, at: Moment) -> MeterHealth:
        """Whether the meter keeps up, as of `at`."""
        idle = self._writer.idle
        stored_to_ns = max(self._stored_to_ns, self._handed_to_ns) if idle else self._stored_to_ns
        return MeterHealth(
            behind_s=max(0, at.mono_ns - stored_to_ns) / NS,
            pending_rows=len(self._batch.usage) + (0 if idle else 1),
            failures=self._writer.failures,
            problem=self._writer.problem,
            damaged=tuple(self._writer.damaged),
        )

    def close(self, at: Moment | None = None, wait_s: float = 5.0) -> bool:
        """Stores what is left, and releases the directory; returns whether all was stored."""
        at, deadline_s = at or now(), time.monotonic() + wait_s
        while not (stored := self.flush(at, max(0.0, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(AGAIN_S)  # on a full disk, the writer retries once a second
        return self._writer.close(wait_s) and stored

    def _take(self, at: Moment, who: Identity, reading: DeviceReading) -> None:
        key = (who.incarnation, reading.device_uuid)
        one = self._open.get(key)
        if one is None:
            one = self._open[key] = _Open(who)
        one.who = who
        if reading.spent_ns is None:
            reading = one.as_charged(reading)
        if one.account is None and not self._opens(key, one, at, reading):
            return
        if one.kept is not None:
            kept_at, kept = one.kept
            if at.mono_ns <= kept_at.mono_ns and at.boot_id == kept_at.boot_id:
                return
            if _memory(kept) != _memory(reading):
                self._count_kept(key, one)  # the interval with the old amount of memory ends
        account = one.account
        if account is None or is_older(account, at):
            return
        passed = at.since_ns(account.mono_ns, account.boot_id)
        if (
            passed is not None
            and passed < COUNT_PERIOD_NS
            and not one.away
            and (reading.spent_ns or 0) >= account.spent_ns
            and _memory(reading) == (account.total_bytes, account.measured_bytes)
        ):
            one.kept = (at, reading)
            return
        self._apply(key, one, at, following(account, at, reading, gap=one.away))

    def _opens(self, key: Key, one: _Open, at: Moment, reading: DeviceReading) -> bool:
        """Whether the stored account is known now; if not, the reading is kept."""
        if one.opening is None:
            one.opening = (at, reading)
        if self._begin(key, one):
            return True
        one.kept = (at, reading)
        return False

    def _begin(self, key: Key, one: _Open) -> bool:
        """Looks up the stored account; returns False if it is not known yet."""
        if one.opening is None:
            return False
        is_known, account = self._writer.account(key)
        if not is_known:
            return False
        (at, reading), one.opening = one.opening, None
        if account is None:
            kept = one.kept
            self._apply(key, one, at, first(at, reading))
            one.kept = kept
        else:
            one.account, one.away = account, True
        return True

    def _count_kept(self, key: Key, one: _Open) -> None:
        if one.account is None and not self._begin(key, one):
            return
        if one.kept is not None and one.account is not None:
            (at, reading), one.kept = one.kept, None
            if not is_older(one.account, at):
                self._apply(key, one, at, following(one.account, at, reading, gap=one.away))

    def _apply(self, key: Key, one: _Open, at: Moment, step: Step) -> None:
        one.account, one.kept, one.away = step.account, None, False
        one.total.add(step.amounts)
        uncharged = _uncharged(one, at, key[1])
        if uncharged is not None:
            one.total.suspicions += 1
            step.amounts.suspicions += 1
            step = dataclasses.replace(step, suspicions=(*step.suspicions, uncharged))
        self._batch.put(key, one.who, at, step)
        for suspicion in step.suspicions:
            told_ns = one.told_ns.get(suspicion.kind)
            if told_ns is None or at.mono_ns - told_ns >= REPEAT_NS:
                one.told_ns[suspicion.kind] = at.mono_ns
                self._found.append(TenantSuspicion(one.who.tenant, key[0], suspicion))

    def _settle(self, at: Moment) -> None:
        """Updates the state after the submitted batch was stored."""
        self._stored_to_ns = max(self._stored_to_ns, self._handed_to_ns)
        for key in list(self._ending):
            one = self._open.get(key)
            if one is None or (one.account is not None and key not in self._batch.accounts):
                self._ending.discard(key)
                self._open.pop(key, None)
        for key, one in list(self._open.items()):
            if (
                one.account is not None
                and one.account.mono_ns < at.mono_ns - FORGET_NS
                and key not in self._batch.accounts
            ):
                del self._open[key]


def _uncharged(one: _Open, at: Moment, uuid: str) -> Suspicion | None:
    """A suspicion if the device measured far more work than the tenant's page charged."""
    measured_ns = one.total.measured_ns - one.compared.measured_ns
    charged_ns = one.total.charged_ns - one.compared.charged_ns
    passed_ns = at.mono_ns - one.compared_ns
    found = measured_ns - charged_ns >= UNCHARGED_NS and measured_ns >= UNCHARGED_TIMES * charged_ns
    if not found and 0 <= passed_ns < COMPARE_NS:
        return None
    one.compared_ns, one.compared = at.mono_ns, dataclasses.replace(one.total)
    if not found:
        return None
    return Suspicion(
        "uncharged",
        uuid,
        f"in {passed_ns / NS:.0f} s the device measured {measured_ns / NS:.1f} s of work for the "
        f"tenant, but its page charged {charged_ns / NS:.1f} s",
    )


def _memory(reading: DeviceReading) -> tuple[int, int | None]:
    return reading.total_bytes, reading.measured.memory_bytes
