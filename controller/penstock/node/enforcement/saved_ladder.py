"""enforce.json, the saved state of a tenant's ladder, in the tenant's directory.

The file is written before any action, so that no action is forgotten: a restarted agent resumes
stopped processes, and continues a running grace.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from penstock.node.enforcement.ladder import KINDS, Ending, Judgement, Ladder, Rung, Step
from penstock.node.enforcement.process import Process
from penstock.node.tenants.boot_id import boot_id
from penstock.node.tenants.json_files import read_record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FILE = "enforce.json"
VERSION = 1
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def write_ladder(directory: Path, ladder: Ladder) -> None:
    """Replaces the file atomically, or removes it if the ladder is idle. Raises OSError."""
    file = directory / FILE
    if ladder.is_idle:
        file.unlink(missing_ok=True)
        return
    aside = directory / f".{FILE}.{os.getpid()}"
    try:
        aside.write_text(to_json(ladder), encoding="utf-8")
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def read_ladder(directory: Path) -> Ladder:
    """The ladder saved since boot, or a new one if there is no usable file."""
    try:
        return from_json(read_record(directory / FILE))
    except (OSError, *_MALFORMED):
        return Ladder()


def to_json(ladder: Ladder) -> str:
    """The ladder as the text of the file."""
    document = {
        "version": VERSION,
        "boot": boot_id(),
        "rungs": [
            {
                "judgement": _judgement_to_plain(rung.last),
                "over_ns": rung.over_ns,
                "step": rung.step.name,
            }
            for rung in ladder.rungs.values()
        ],
        "cut": sorted(ladder.cut),
        "suspended": ladder.suspended,
        "stopped": _to_plain(ladder.stopped),
        "ending": [
            {
                "process": _to_plain([one])[0],
                "at_ns": since.at_ns,
                "judgement": _judgement_to_plain(since.judgement),
            }
            for one, since in ladder.ending.items()
        ],
        "killed": _to_plain(ladder.killed),
        "rounds": [ladder.rounds, ladder.round_ns],
    }
    return json.dumps(document) + "\n"


def from_json(text: str) -> Ladder:
    """The ladder from the text of a file. Raises one of `_MALFORMED` if the text is invalid."""
    document = json.loads(text)
    if document["version"] != VERSION or document["boot"] != boot_id():
        raise ValueError("it has another version, or is from before the last boot")
    rungs = {}
    for plain in document["rungs"]:
        judgement = _judgement(plain["judgement"])
        rungs[judgement.kind, judgement.device] = Rung(
            judgement, over_ns=int(plain["over_ns"]), step=Step[plain["step"]]
        )
    rounds, round_ns = map(int, document.get("rounds", (0, 0)))  # older files lack this field
    return Ladder(
        rungs=rungs,
        cut=frozenset(map(str, document["cut"])),
        suspended=bool(document["suspended"]),
        stopped=_processes(document["stopped"]),
        ending={
            _process(plain["process"]): Ending(int(plain["at_ns"]), _judgement(plain["judgement"]))
            for plain in document["ending"]
        },
        killed=set(_processes(document["killed"])),
        rounds=rounds,
        round_ns=round_ns,
    )


def _judgement_to_plain(judgement: Judgement) -> dict[str, object]:
    return {
        "kind": judgement.kind,
        "device": judgement.device,
        "reason": judgement.reason,
        "offenders": _to_plain(judgement.offenders),
        "unshimmed": _to_plain(judgement.unshimmed),
        "cut_permille": judgement.cut_permille,
    }


def _judgement(plain: Any) -> Judgement:  # noqa: ANN401 - parsed JSON
    kind = plain["kind"]
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}")
    return Judgement(
        kind=kind,
        device=str(plain["device"]),
        reason=str(plain["reason"]),
        offenders=_processes(plain["offenders"]),
        unshimmed=_processes(plain["unshimmed"]),
        cut_permille=int(plain["cut_permille"]),
    )


def _to_plain(processes: Iterable[Process]) -> list[list[object]]:
    return [[one.pid, one.start_ticks, one.command] for one in sorted(processes)]


def _process(plain: Any) -> Process:  # noqa: ANN401 - parsed JSON
    pid, start_ticks, command = plain
    return Process(int(pid), int(start_ticks), str(command))


def _processes(plain: Any) -> frozenset[Process]:  # noqa: ANN401 - parsed JSON
    return frozenset(map(_process, plain))
