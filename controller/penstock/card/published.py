"""Published figures: the small file in which a program tells `penstock card top` of its cards.

Each program writes one, named by its process, about once a second into its user's runtime folder.
Who reads it does not trust it: root reads files of all users.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.card import runtime_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1  # of the file
MOST_BYTES = 1 << 20  # of a file
MOST_COSTS = 50  # in a file
_MOST_CARDS = 4096
_MOST_TEXT = 1024  # characters
_NAME = re.compile(r"([1-9]\d{0,9})\.json")
_T = TypeVar("_T")


@dataclass
class CardFigures:
    """One card. Shares and percentages are of the last period, about a second.

    Attributes:
        name: Its number and what it is.
        share: Its part of the rows of what is split, by its speed.
        work: Its part of the busy time of all cards.
        busy_percent: Of the time: it worked.
        cards_percent: Of the time: it exchanged data with other cards, or waited for them.
        program_percent: Of the time: it waited for the program.
        age_s: How old its figures are: it answers between operations.
        doing: What it executes, if its figures are old.
        node: Where its worker runs.
        kind: What it is there, such as "cpu".
        rows: Of the last batch: what it had of it; None: it is not known.
        samples_per_s: Rows of batches, in the last seconds; None: it is not known.
    """

    name: str
    speed: float
    share: float
    work: float = 0.0
    busy_percent: float = 0.0
    cards_percent: float = 0.0
    program_percent: float = 0.0
    busy_s: float = 0.0
    cards_s: float = 0.0
    program_s: float = 0.0
    operations: int = 0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    gathers: int = 0
    gathered_bytes: int = 0
    sums: int = 0
    summed_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0
    total_bytes: int = 0
    age_s: float = 0.0
    doing: str = ""
    node: str = ""
    kind: str = ""
    rows: int | None = None
    samples_per_s: float | None = None


@dataclass
class CostFigures:
    """What one line of a program has cost.

    Attributes:
        what: "gather", "download", "data-dependent" or "new plans".
        line: File and line; empty if it is not known.
    """

    what: str
    operation: str
    reason: str
    line: str
    count: int
    size_bytes: int
    waited_s: float


@dataclass
class ProgramFigures:
    """What a program publishes.

    Attributes:
        started_ticks: When its process began, as /proc says it: numbers of processes come again.
        written_s: When this was written, in seconds since 1970.
        steps: Backward passes.
        waited_s: How long it has waited for its cards.
        problem: Why it can use its cards no more; empty if it can.
        loss: The last that was read of those on which backward is called; None: there was none, or
            it is no finite number.
        loss_step: The step at which it was read; 0: none was.
        is_loss_finite: False: the last loss that was read is NaN or infinite.
        samples: Rows of all batches so far; None: they are not known.
        samples_per_s: In the last seconds; None: it is not known.
        is_sharded: Whether each card keeps a part of the parameters, or all of them.
        copy_bytes: What the program keeps, so that lost cards are replaced; None: it keeps nothing.
        copy_age_s: How old that copy is.
    """

    pid: int
    started_ticks: int
    command: str
    written_s: float
    running_s: float
    steps: int = 0
    steps_per_s: float = 0.0
    operations_per_s: float = 0.0
    waited_s: float = 0.0
    waited_percent: float = 0.0
    problem: str = ""
    loss: float | None = None
    loss_step: int = 0
    is_loss_finite: bool = True
    samples: int | None = None
    samples_per_s: float | None = None
    is_sharded: bool = False
    copy_bytes: int | None = None
    copy_age_s: float | None = None
    user: int = 0
    cards: list[CardFigures] = field(default_factory=list)
    costs: list[CostFigures] = field(default_factory=list)


def write(folder: int, program: ProgramFigures) -> None:
    """Replaces a program's file, so that a reader never finds half of one. Raises OSError."""
    body = json.dumps({"version": VERSION, **asdict(program)}).encode()
    name, new = f"{program.pid}.json", f"{program.pid}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=folder)  # of a program that was killed while it wrote
    descriptor = os.open(
        new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(body)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise


def remove(folder: int, pid: int) -> None:
    """Removes a program's file."""
    for name in (f"{pid}.json", f"{pid}.new"):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def read_all() -> tuple[list[ProgramFigures], list[str]]:
    """The programs that this user may see, and what could not be read, in words.

    Files of programs that have ended are removed.
    """
    programs: list[ProgramFigures] = []
    problems: list[str] = []
    with runtime_folder.opened() as folders:
        for place, folder in folders:
            for name in sorted(os.listdir(folder)):  # noqa: PTH208 - of a descriptor
                match = _NAME.fullmatch(name)
                if match is None:
                    continue
                pid = int(match[1])
                if started_ticks(pid) is None:
                    remove(folder, pid)
                    continue
                try:
                    program = _read(folder, name, place.uid)
                except FileNotFoundError:
                    continue  # it has just ended
                except (OSError, ValueError) as error:
                    problems.append(f"process {pid}: {place}/{name} cannot be read: {error}")
                    continue
                if program.pid != pid or program.started_ticks != started_ticks(pid):
                    remove(folder, pid)  # of an earlier process of this number
                    continue
                programs.append(program)
    return sorted(programs, key=lambda one: one.pid), problems


def started_ticks(pid: int) -> int | None:
    """When a process began, in ticks since the machine's start; None if it runs no more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    after = text.rpartition(")")[2].split()  # the name before may have spaces
    return None if after[0] in "ZX" else int(after[19])


def _read(folder: int, name: str, uid: int) -> ProgramFigures:
    """Reads a file. Raises OSError or ValueError if it is not as it must be."""
    ways = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, ways, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            raise ValueError("it is no file of its user")
        raw = stream.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES} bytes")
    try:
        data = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict) or data.pop("version", None) != VERSION:
        raise ValueError("another release of Penstock wrote it")
    cards = _several(CardFigures, data.pop("cards", None), _MOST_CARDS)
    costs = _several(CostFigures, data.pop("costs", None), MOST_COSTS)
    program = _checked(ProgramFigures, {**data, "cards": cards, "costs": costs})
    program.user = uid
    return program


def _several(kind: type[_T], data: Any, most: int) -> list[_T]:
    if not isinstance(data, list) or len(data) > most:
        raise ValueError("it has no list where one belongs, or one that is too long")
    return [_checked(kind, one) for one in data]


def _checked(kind: type[_T], data: Any) -> _T:
    """Makes a dataclass of what a file says; of other releases, what both have.

    Raises:
        ValueError: it is anything else.
    """
    known: Sequence[Any] = fields(kind)  # type: ignore[arg-type]
    needed = {one.name for one in known if one.default is one.default_factory is MISSING}
    if not isinstance(data, dict) or not needed <= data.keys():
        raise ValueError(f"it has not all fields of {kind.__name__}")
    given = [one for one in known if one.name in data]
    return kind(**{one.name: _value(one.type, data[one.name], one.name) for one in given})


def _value(kind: str, value: Any, name: str) -> Any:
    """A figure that is what it must be. Raises ValueError for anything else."""
    if kind.endswith(" | None") and value is None:
        return None
    kind = kind.removesuffix(" | None")
    if kind == "str" and isinstance(value, str):
        return "".join(c if c.isprintable() else "\ufffd" for c in value[:_MOST_TEXT])
    if kind == "int" and type(value) is int and 0 <= value < 1 << 64:
        return value
    if kind == "float" and type(value) in {int, float} and math.isfinite(value):
        if value >= 0 or name == "loss":
            return float(value)
    elif (kind == "bool" and isinstance(value, bool)) or (
        kind.startswith("list") and isinstance(value, list)
    ):
        return value
    raise ValueError(f"{str(value)[:40]!r} is no {kind}")
