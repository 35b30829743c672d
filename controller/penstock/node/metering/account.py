"""Arithmetic of an account, which is one tenant's use of one device from reading to reading.

The functions are pure: they take readings and clocks, and return amounts. An account is stored in
the same transaction as its amounts, so after a kill the next reading continues from the last stored
one. The page's counter is cumulative, so nothing is counted twice or left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.node.metering.metered_amounts import NS, Amounts

if TYPE_CHECKING:
    from penstock.node.metering.clock import Moment
    from penstock.node.metering.reading import DeviceReading

LEDGER_BYTES = 1 << 45  # capacity of the ledger's word, and so the maximum in a page
GAP_NS = 5 * NS  # readings further apart than this leave an unobserved gap
SLACK_NS = NS  # for clocks read one after the other, and for work charged before its end
MOST = 2**63 - 1  # the largest value that the store can hold; a page may report more
_HALF_BYTE_SECONDS = 2 * NS  # remainders count half byte-nanoseconds

SuspicionKind = Literal["runs-backwards", "too-fast", "too-much-memory", "uncharged"]


@dataclass(frozen=True)
class Suspicion:
    """A value in a usage page that cannot be true, or is far below what the device measured."""

    kind: SuspicionKind
    device_uuid: str
    reason: str


@dataclass(frozen=True)
class Account:
    """The last reading that was counted, and the remainders carried over to the next reading."""

    boot_id: str
    mono_ns: int
    wall_ns: int
    spent_ns: int
    total_bytes: int
    measured_ns: int | None
    measured_bytes: int | None
    credit_ns: int  # device time that may still be charged, as it has passed uncharged
    byte_carry: int = 0  # remainder below a byte-second, in half byte-nanoseconds
    measured_byte_carry: int = 0


@dataclass(frozen=True)
class Step:
    """The result of one reading: the new account and the amounts it adds."""

    account: Account
    amounts: Amounts
    elapsed_ns: int  # length of the interval before the reading that the amounts cover
    suspicions: tuple[Suspicion, ...] = ()


def is_older(account: Account, at: Moment) -> bool:
    """Whether a reading at `at` is no newer than the last reading counted in the account."""
    passed = at.since_ns(account.mono_ns, account.boot_id)
    return passed is not None and passed <= 0


def first(at: Moment, reading: DeviceReading) -> Step:
    """The result of the first reading of a tenant that has not been metered yet.

    The counter started at 0 with the page. It may hold no more device time than has passed since
    the first launch, if the page gives a plausible time for it, and otherwise since boot.
    """
    origin = reading.origin_ns
    if origin == 0:
        passed = 0  # nothing has been launched
    else:
        passed = at.mono_ns - origin if origin and origin <= at.mono_ns else at.mono_ns
    before = Account(
        boot_id=at.boot_id,
        mono_ns=at.mono_ns,
        wall_ns=at.wall_ns,
        spent_ns=0,
        total_bytes=0,
        # The device's total may include an earlier tenant of the same name, so it starts here.
        measured_ns=reading.measured.busy_ns,
        measured_bytes=None,
        credit_ns=passed + SLACK_NS,
    )
    # Memory held before the first reading is unknown, so the integral starts with the next reading.
    step = _step(before, at, reading, elapsed_ns=0)
    return Step(step.account, step.amounts, passed if origin else 0, step.suspicions)


def following(account: Account, at: Moment, reading: DeviceReading, *, gap: bool = False) -> Step:
    """The result of a later reading. `gap`: whether the meter did not run in between."""
    passed = at.since_ns(account.mono_ns, account.boot_id)
    if passed is None:
        # Rebooted while the page survived: the counter continues, but the time between is lost.
        return _step(account, at, reading, elapsed_ns=0, regained_ns=at.mono_ns)
    step = _step(account, at, reading, elapsed_ns=passed)
    step.amounts.metered_ns = passed
    if gap or passed > GAP_NS:
        step.amounts.estimated_ns = passed
    return step


def _step(
    account: Account, at: Moment, reading: DeviceReading, *, elapsed_ns: int, regained_ns: int = 0
) -> Step:
    amounts = Amounts()
    suspicions: list[Suspicion] = []
    spent_ns = min(reading.spent_ns or 0, MOST)
    # One percent more than has passed, because the clocks of host and device may differ slightly.
    credit_ns = account.credit_ns + elapsed_ns + elapsed_ns // 100 + regained_ns
    credit_ns = _charge(
        account,
        spent_ns,
        credit_ns,
        elapsed_ns,
        uuid=reading.device_uuid,
        amounts=amounts,
        suspicions=suspicions,
    )
    total_bytes = _held(reading, amounts, suspicions)
    amounts.byte_seconds, byte_carry = divmod(
        account.byte_carry + (account.total_bytes + total_bytes) * elapsed_ns, _HALF_BYTE_SECONDS
    )
    measured = reading.measured
    amounts.measured_ns = _measured_ns(account, reading, elapsed_ns)
    measured_carry = account.measured_byte_carry
    if measured.memory_bytes is not None and account.measured_bytes is not None:
        amounts.measured_byte_seconds, measured_carry = divmod(
            measured_carry + (account.measured_bytes + measured.memory_bytes) * elapsed_ns,
            _HALF_BYTE_SECONDS,
        )
    following_account = Account(
        boot_id=at.boot_id,
        mono_ns=at.mono_ns,
        wall_ns=at.wall_ns,
        spent_ns=spent_ns,
        total_bytes=total_bytes,
        measured_ns=account.measured_ns if measured.busy_ns is None else measured.busy_ns,
        measured_bytes=measured.memory_bytes,
        credit_ns=min(credit_ns, MOST),
        byte_carry=byte_carry,
        measured_byte_carry=measured_carry,
    )
    return Step(following_account, amounts, elapsed_ns, tuple(suspicions))


def _charge(
    account: Account,
    spent_ns: int,
    credit_ns: int,
    elapsed_ns: int,
    *,
    uuid: str,
    amounts: Amounts,
    suspicions: list[Suspicion],
) -> int:
    """Charges the growth of the counter, up to the credit; returns the remaining credit."""
    grown_ns = spent_ns - account.spent_ns
    if grown_ns < 0:
        # Nothing is refunded. From here on growth counts again, limited by the credit.
        suspicions.append(
            Suspicion(
                "runs-backwards",
                uuid,
                f"the device time charged fell from {account.spent_ns} to {spent_ns} ns",
            )
        )
        grown_ns = 0
    elif grown_ns > credit_ns:
        suspicions.append(
            Suspicion(
                "too-fast",
                uuid,
                f"the page reports {grown_ns} ns of device time, but at most {credit_ns} ns are "
                "possible",
            )
        )
        # A false counter can be off by centuries, so the recorded amount is limited for sums to
        # fit.
        amounts.suspicious_ns = min(grown_ns - credit_ns, elapsed_ns + SLACK_NS)
        grown_ns = credit_ns
    amounts.charged_ns = grown_ns
    amounts.suspicions = len(suspicions)
    return credit_ns - grown_ns


def _held(reading: DeviceReading, amounts: Amounts, suspicions: list[Suspicion]) -> int:
    """The ledger's total, limited to the device's memory."""
    limit = min(reading.device_memory_bytes or LEDGER_BYTES, LEDGER_BYTES)
    if reading.total_bytes <= limit:
        return reading.total_bytes
    suspicions.append(
        Suspicion(
            "too-much-memory",
            reading.device_uuid,
            f"the page reports {reading.total_bytes} bytes on a device with {limit}",
        )
    )
    amounts.suspicions += 1
    return limit


def _measured_ns(account: Account, reading: DeviceReading, elapsed_ns: int) -> int:
    measured = reading.measured
    if measured.busy_ns is not None:
        if account.measured_ns is None:
            return 0
        return max(0, measured.busy_ns - account.measured_ns)
    if measured.busy_permille is not None and elapsed_ns <= GAP_NS:
        return elapsed_ns * min(1000, max(0, measured.busy_permille)) // 1000
    return 0
