"""Run: one execution of a training job, kept in a folder of its project.

The folder has `job.json` (what is run), `state.json` (how it is), `events.jsonl` (what happened),
`output.log` (what the program printed), and `lock`, which the process that supervises it holds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from penstock.card.credentials import Credentials
from penstock.card.published import started_ticks
from penstock.model import PenstockError, nearest
from penstock.training.document import TrainJob
from penstock.training.fields import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "PENSTOCK_TRAIN_DIR"
ACTIVE = {"starting", "preparing", "running", "restarting", "stopping"}
OVER = {"succeeded", "failed", "stopped"}  # also the last events of such runs
_RUN = "run"  # begins the names of runs that got none


@dataclass(frozen=True)
class State:
    """How a run is.

    Attributes:
        phase: "starting", "preparing", "running", "restarting", "stopping", "succeeded", "failed",
            "stopped"; for a run whose supervisor has gone "unwatched" (the program goes on) or
            "lost".
        attempt: How often the program was started.
        pid: Of the program; 0: it does not run.
        ticks: When that process began, as /proc says it.
        code: The program's exit code, negative for a signal; None: it has none yet.
        reason: Why it is so, in words.
        began_s, ended_s: Seconds since 1970; 0: not yet.
        steps: Of the data's preparation: by name "waiting", "running", "done", "done before",
            "failed".
    """

    phase: str
    attempt: int = 0
    pid: int = 0
    ticks: int = 0
    code: int | None = None
    reason: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0
    steps: dict[str, str] = field(default_factory=dict)

    def program_runs(self) -> bool:
        """Whether the program's process is still there."""
        return self.pid > 0 and started_ticks(self.pid) == self.ticks


@dataclass(frozen=True)
class Event:
    """What happened to a run, at `time` in seconds since 1970."""

    time: float
    event: str
    text: str


_STATE, _EVENT = TypeAdapter(State), TypeAdapter(Event)


@dataclass(frozen=True)
class Run:
    """A run in its folder, which `create` makes and `find` finds."""

    folder: Path

    @property
    def project(self) -> str:
        """The project's name."""
        return self.folder.parent.name

    @property
    def name(self) -> str:
        """Its own name."""
        return self.folder.name

    @property
    def output(self) -> Path:
        """What the program printed."""
        return self.folder / "output.log"

    @property
    def events_file(self) -> Path:
        """What happened, each line a JSON object with `time`, `event` and `text`."""
        return self.folder / "events.jsonl"

    def __str__(self) -> str:
        return f"{self.project}/{self.name}"

    def job(self) -> TrainJob:
        """What is run. Raises `PenstockError` if its file cannot be read."""
        with _reading(self.folder / "job.json"):
            return TrainJob.model_validate(json.loads((self.folder / "job.json").read_text()))

    def state(self) -> State:
        """How it is. Raises `PenstockError` if its file cannot be read."""
        with _reading(self.folder / "state.json"):
            said = _STATE.validate_json((self.folder / "state.json").read_bytes())
        if said.phase not in ACTIVE or self.is_supervised():
            return said
        if said.program_runs():
            return replace(
                said, phase="unwatched", reason="its supervisor was killed; the program goes on"
            )
        last = self.events()[-1:]
        if last and last[0].event in OVER:  # on a full disk an event may have found room
            return replace(said, phase=last[0].event, reason=last[0].text)
        return replace(
            said, phase="lost", reason="its supervisor was killed, or the machine restarted"
        )

    def write_state(self, state: State) -> None:
        """Keeps how it is, at once or not at all. Raises `OSError`."""
        write_json(self.folder / "state.json", asdict(state))

    def add_event(self, event: str, text: str) -> None:
        """Notes what happened; on a full disk it is not noted."""
        line = json.dumps({"time": time.time(), "event": event, "text": text})
        with contextlib.suppress(OSError), self.events_file.open("a") as file:
            file.write(line + "\n")

    def events(self) -> list[Event]:
        """What happened so far: What is no such line is left out."""
        try:
            lines = self.events_file.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(_EVENT.validate_json(line))
        return found

    def lock(self) -> int:
        """Takes the supervisor's place; returns the descriptor that holds it.

        Raises:
            PenstockError: another process has it.
        """
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise PenstockError(
                f"run {self} is supervised already", "another process does it", "leave it alone"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        return descriptor

    def supervisor(self) -> int | None:
        """The pid of the process that supervises it; None: nobody does."""
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.pread(descriptor, 20, 0) or b"0") or None
        else:
            return None
        finally:
            os.close(descriptor)

    def is_supervised(self) -> bool:
        """Whether a process supervises it."""
        return self.supervisor() is not None

    def remove(self) -> None:
        """Deletes it with all that it has printed. Raises `PenstockError` if it is not over."""
        try:
            phase = self.state().phase
        except PenstockError:  # then only a supervisor can say so
            phase = "running" if self.is_supervised() else "unreadable"
        if phase in {*ACTIVE, "unwatched"}:
            raise PenstockError(
                f"run {self} is {phase}", "it is not over", f"penstock train stop {self}"
            )
        shutil.rmtree(self.folder)
        with contextlib.suppress(OSError):  # the project has other runs
            self.folder.parent.rmdir()


def projects_folder() -> Path:
    """$PENSTOCK_TRAIN_DIR; else /var/lib/penstock/train for root, and a folder of other users'."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/penstock/train")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share") / "penstock/train"


def create(job: TrainJob) -> Run:
    """A new run, in its folder. Raises `PenstockError` if its name is taken, say."""
    if job.spec.credentials is not None:
        Credentials.read(Path(job.spec.credentials))  # wrong ones are told now
    project = projects_folder() / job.metadata.project
    try:
        project.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=project) as folder:
            made = Run(Path(folder) / "run")
            made.folder.mkdir(mode=0o700)
            write_json(made.folder / "job.json", job.plain())
            made.write_state(State("starting", began_s=time.time()))
            return _named(made, project, job.metadata.name)
    except OSError as error:
        raise PenstockError(
            f"cannot keep a run in {project}", error.strerror or str(error),
            f"make room, or name another folder with ${VARIABLE}",
        ) from error  # fmt: skip


def _named(made: Run, project: Path, name: str | None) -> Run:
    """The run, in a folder of this name, or of the next number."""
    number = 1
    while True:
        folder = project / (name or f"{_RUN}-{number}")
        try:
            return Run(made.folder.rename(folder))  # fails if there is one that is not empty
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise
            if name is not None:
                raise PenstockError(
                    f"project {project.name} has a run {name} already",
                    "runs are kept until they are removed",
                    f"choose another name, or penstock train rm {project.name}/{name}",
                ) from None
            number += 1


def runs(project: str | None = None) -> list[Run]:
    """All runs, or those of a project, the oldest first. Raises `PenstockError` for no name."""
    if project is not None and not re.fullmatch(NAME, project):
        raise PenstockError(
            f"{project[:80]!r} is no project", "a name has small letters, digits, '-' and '.'",
            "see penstock train ls",
        )  # fmt: skip
    found = [Run(file.parent) for file in projects_folder().glob(f"{project or '*'}/*/job.json")]
    named = [one for one in found if re.fullmatch(NAME, one.name)]
    return sorted(named, key=lambda one: (one.folder / "job.json").stat().st_mtime)


def find(text: str) -> Run:
    """The run that a user names as PROJECT/RUN, or RUN if only one project has it.

    Raises:
        PenstockError: there is none, or there are several.
    """
    known = runs()
    if not all(re.fullmatch(NAME, part) for part in text.split("/")):
        known = []
    found = [one for one in known if text in {str(one), one.name}]
    if len(found) == 1:
        return found[0]
    names = [str(one) for one in runs()]
    if found:
        raise PenstockError(
            f"several projects have a run {text}", ", ".join(map(str, found)), "name one of these"
        )
    near = nearest(text, names)
    raise PenstockError(
        f"there is no run {text[:80]!r}", f"{projects_folder()} has {len(names)}",
        f"did you mean {near}?" if near else "see penstock train ls",
    )  # fmt: skip


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Replaces a file at once, or not at all. Raises `OSError`."""
    aside = file.with_suffix(".new")
    with aside.open("w") as stream:
        json.dump(value, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(file)


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it was changed or cut off"
        raise PenstockError(
            f"cannot read {file}", str(why), "remove the run's folder if it is of no use"
        ) from error
