"""The arithmetic of one account: one tenant's use of one device, from reading to reading.

Pure: readings and clocks come in, amounts go out. An account is a value that is stored in the same
transaction as the amounts that led to it, so after a kill the next reading counts on from the last
one that was stored: never twice, and nothing is left out, for the page's counter is cumulative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.node.metering.metered_amounts import NS, Amounts

if TYPE_CHECKING:
    from penstock.node.metering.clock import Moment
    from penstock.node.metering.reading import DeviceReading

LEDGER_BYTES = 1 << 45  # what the ledger's word can hold, and so the most that a page can tell
GAP_NS = 5 * NS  # readings further apart are a gap: what lies between was not seen
SLACK_NS = NS  # of two clocks read one after the other, and of charges told ahead of their end
MOST = 2**63 - 1  # what the store holds; a page may say more
_HALF_BYTE_SECONDS = 2 * NS  # remainders are in halves of a byte-nanosecond

SuspicionKind = Literal["runs-backwards", "too-fast", "too-much-memory", "uncharged"]


@dataclass(frozen=True)
class Suspicion:
    """A figure of a usage page that cannot be true, or lacks what the device has measured."""

    kind: SuspicionKind
    device_uuid: str
    reason: str


@dataclass(frozen=True)
class Account:
    """The last reading taken into account, and what is carried on to the next one."""

    boot_id: str
    mono_ns: int
    wall_ns: int
    spent_ns: int
    total_bytes: int
    measured_ns: int | None
    measured_bytes: int | None
    credit_ns: int  # device time that may still be charged: wall time that was not
    byte_carry: int = 0  # below a byte-second, in half byte-nanoseconds
    measured_byte_carry: int = 0


@dataclass(frozen=True)
class Step:
    """What one reading adds."""

    account: Account
    amounts: Amounts
    elapsed_ns: int  # the stretch that the amounts belong to; it ends at the reading
    suspicions: tuple[Suspicion, ...] = ()


def is_older(account: Account, at: Moment) -> bool:
    """Whether a reading of `at` was taken before, or is, the one that the account has counted."""
    passed = at.since_ns(account.mono_ns, account.boot_id)
    return passed is not None and passed <= 0


def first(at: Moment, reading: DeviceReading) -> Step:
    """The first reading of a tenant that nobody has metered yet.

    Its counter began at 0, with its page. It may hold no more device time than has passed since the
    first launch, where the page names a moment that may have been, else since the machine started.
    """
    origin = reading.origin_ns
    if origin == 0:
        passed = 0  # nothing was launched
    else:
        passed = at.mono_ns - origin if origin and origin <= at.mono_ns else at.mono_ns
    before = Account(
        boot_id=at.boot_id,
        mono_ns=at.mono_ns,
        wall_ns=at.wall_ns,
        spent_ns=0,
        total_bytes=0,
        # The device may count an earlier tenant of that name along: it is measured from here on.
        measured_ns=reading.measured.busy_ns,
        measured_bytes=None,
        credit_ns=passed + SLACK_NS,
    )
    # Memory held before the first look is not known; the next reading begins the integral.
    step = _step(before, at, reading, elapsed_ns=0)
    return Step(step.account, step.amounts, passed if origin else 0, step.suspicions)


def following(account: Account, at: Moment, reading: DeviceReading, *, gap: bool = False) -> Step:
    """A later reading of the same page. `gap`: the meter itself was away in between."""
    passed = at.since_ns(account.mono_ns, account.boot_id)
    if passed is None:
        # Started anew with the page still there: the counter counts on, the time between does not.
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
    # One percent more than has passed: the clocks of host and device need not agree to the last.
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
    """Charges what the counter grew by, as far as that may be; returns the credit that is left."""
    grown_ns = spent_ns - account.spent_ns
    if grown_ns < 0:
        # Nothing is given back; from here on growth counts again, and credit bounds it.
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
                f"{grown_ns} ns of device time were told where at most {credit_ns} can have been",
            )
        )
        # A counter can lie by centuries: what is noted is no more than sums can hold.
        amounts.suspicious_ns = min(grown_ns - credit_ns, elapsed_ns + SLACK_NS)
        grown_ns = credit_ns
    amounts.charged_ns = grown_ns
    amounts.suspicions = len(suspicions)
    return credit_ns - grown_ns


def _held(reading: DeviceReading, amounts: Amounts, suspicions: list[Suspicion]) -> int:
    """The ledger's total, within what the device has."""
    limit = min(reading.device_memory_bytes or LEDGER_BYTES, LEDGER_BYTES)
    if reading.total_bytes <= limit:
        return reading.total_bytes
    suspicions.append(
        Suspicion(
            "too-much-memory",
            reading.device_uuid,
            f"{reading.total_bytes} bytes are told on a device of {limit}",
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
