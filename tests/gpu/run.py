"""A run of the suite: checks in their order, each one's outcome a row, whatever it does."""

from __future__ import annotations

import math
import signal
import time
import traceback
from typing import TYPE_CHECKING

from tests.gpu import children
from tests.gpu.children import FailedError, HungError
from tests.gpu.rows import DiffersError, FailsNativelyError, NotHereError, Outcome, Row, Status
from tests.gpu.sections.coverage import all_pairs

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

    from tests.gpu.budget import Budget, Check, Slot
    from tests.gpu.report import Report
    from tests.gpu.setting import Setting


class StoppedRunError(BaseException):
    """The run was told to end (SIGTERM, SIGINT, SIGHUP); no check may take it for its own error."""


def _stop(number: int, _: FrameType | None) -> None:
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(
            one, signal.SIG_IGN
        )  # the report is being written; SIGKILL leaves it whole too
    raise StoppedRunError(signal.Signals(number).name)


def run_checks(
    checks: Sequence[Check],
    setting: Setting,
    report: Report,
    budget: Budget,
    more: Iterable[Check] = (),
) -> int:
    """Runs what there is time for; each row is in the report before the next begins.

    Args:
        checks: those planned.
        setting: what they have at hand.
        report: where their rows go.
        budget: their time.
        more: what is run in the time that is left.

    Returns the number of the signal that ended it early, 0: none. Raises nothing of a check's.
    """
    before = {
        one: signal.signal(one, _stop) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    try:
        here = []
        for check in checks:
            absent = row_of_absent(check, setting)
            if absent is None:
                here.append(check)
            else:
                report.add(absent)
        seen: set[tuple[str, str]] = set()
        for slot in budget.slots(here, present(more, setting)):
            row = measure(slot, setting)
            if row.status == "measured" and slot.check.pairs:
                seen |= slot.check.pairs & all_pairs()
                report.facts["pairs_of_conditions"] = f"{len(seen)} of {len(all_pairs())}"
            report.add(row)
    except StoppedRunError as told:
        report.end(f"cut by {told}")
        return int(signal.Signals[str(told)])
    else:
        report.end("cut: the time was over" if report.missing() else "complete")
    finally:
        children.kill_all()
        for one, handler in before.items():
            signal.signal(one, handler)
    return 0


def present(checks: Iterable[Check], setting: Setting) -> Iterator[Check]:
    """Those whose needs are here."""
    return (check for check in checks if row_of_absent(check, setting) is None)


def row_of_absent(check: Check, setting: Setting) -> Row | None:
    """The row of a check whose needs are not here; None: they are."""
    if check.requires is None:
        return None
    try:
        check.requires(setting)
    except NotHereError as error:
        words, simulated = f"not here: {error}", setting.arena.simulated
        return Row(check.section, check.name, "not here", words, "", None, simulated, 0.0)
    return None


def measure(slot: Slot, setting: Setting) -> Row:
    """One check to its end."""
    began = time.monotonic()
    setting.deadline = slot.deadline
    status: Status = "measured"
    try:
        outcome = slot.check.run(setting)
        status = "wrong" if outcome.is_fault else "measured"
    except NotHereError as error:
        status, outcome = "not here", Outcome(f"not here: {error}")
    except FailsNativelyError as error:
        status, outcome = "fails natively", Outcome(str(error))
    except DiffersError as error:
        status, outcome = "differs", Outcome(str(error), reached=False)
    except HungError as error:
        # Out of the run's time: nothing is known of the program.
        status, outcome = "cut" if slot.is_short else "hung", Outcome(str(error))
    except (FailedError, PenstockError, OSError) as error:
        status, outcome = "failed", Outcome(str(error))
    except Exception as error:  # noqa: BLE001 - a fault of one check costs its row, not the run
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        status, outcome = "failed", Outcome(words)
    simulated = setting.arena.simulated if outcome.simulated is None else outcome.simulated
    return Row(
        section=slot.check.section,
        name=slot.check.name,
        status=status,
        measured=outcome.measured,
        aim=outcome.aim,
        reached=outcome.reached,
        simulated=simulated,
        seconds=round(time.monotonic() - began, 2),
        figures={k: float(v) for k, v in outcome.figures.items() if math.isfinite(v)},
        details=outcome.details,
    )
