"""On-disk state of a replica set in `<state>/scale/<set>/`, so that a new scaler finds it.

`set.json` specifies a replica. `replica-N.json` is the record that replica N's keeper writes; the
keeper holds `replica-N.lock` while it runs. The set's only scaler holds `scaler.lock`.
`report.json` is the last decision, for users.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock.model import PenstockError, check_tenant_name
from penstock.model.terms import DEFAULT_GRACE_NS, DEFAULT_STEP
from penstock.node.admission.admit import Request
from penstock.node.tenants.state import is_locked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.model.terms import Mode, Step
    from penstock.node.tenants.state import State

FOLDER = "scale"
REPLICA_VARIABLE = "PENSTOCK_REPLICA"  # the replica's number, from 1, for the command to use
SET_VARIABLE = "PENSTOCK_REPLICA_SET"  # the set's directory, which identifies its processes
MAX_SET_NAME = 57  # leaves room for "-99999" in a tenant's name
_NOT_READABLE = (OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class SetSpec:
    """The specification of a replica: a command under a quota, on real or simulated devices."""

    name: str
    request: Request  # without a name, because a replica's name follows from its number
    machine: str | None = None  # the simulated machine's file
    agent: str | None = None  # the socket of the granting agent; None without an agent

    def request_of(self, number: int) -> Request:
        """The request of replica `number`."""
        return dataclasses.replace(self.request, name=f"{self.name}-{number}")


RecordPhase = Literal["starting", "running", "refused", "ended"]


@dataclass(frozen=True)
class Record:
    """A keeper's record of its replica."""

    phase: RecordPhase
    pid: int  # the keeper's
    exit_code: int | None = None
    reason: str = ""


class SetStore:
    """The files of one set."""

    def __init__(self, state: State, name: str) -> None:
        """Raises `PenstockError` if no tenant names can be formed from `name`."""
        check_tenant_name(name)
        if len(name) > MAX_SET_NAME:
            raise PenstockError(
                f"name {name!r} is too long",
                f"replicas are called {name[:8]}…-1, -2: a set's name has at most {MAX_SET_NAME} "
                "characters",
                "choose another --name",
            )
        self.state = state
        self.name = name
        self.directory = state.directory / FOLDER / name

    def make(self) -> None:
        """Creates the directory and its parents."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def lock_scaler(self) -> int:
        """Locks the set for this scaler, until the returned descriptor is closed.

        Raises:
            PenstockError: another scaler holds the lock; the error names its pid.
        """
        descriptor = _try_lock(self.directory / "scaler.lock")
        if descriptor is None:
            pid = self.scaler_pid()
            raise PenstockError(
                f"{self.name!r} already has a scaler",
                f"pid {pid}" if pid else "another process",
                "end that one first, or choose another --name",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor

    def scaler_pid(self) -> int | None:
        """The pid of the running scaler; None if no scaler runs."""
        file = self.directory / "scaler.lock"
        if not is_locked(file):
            return None
        try:
            return int(file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def lock_replica(self, number: int) -> int | None:
        """Locks replica `number` as live; returns a descriptor, or None if it has a keeper."""
        return _try_lock(self.directory / f"replica-{number}.lock")

    def is_kept(self, number: int) -> bool:
        """Whether replica `number` has a live keeper."""
        return is_locked(self.directory / f"replica-{number}.lock")

    def write_spec(self, spec: SetSpec) -> None:
        """Replaces `set.json`."""
        self._write("set.json", dataclasses.asdict(spec))

    def read_spec(self) -> SetSpec | None:
        """The specification of the replicas; None if the file is missing or damaged."""
        try:
            plain = self._read("set.json")
            request = plain["request"]
            return SetSpec(
                name=str(plain["name"]),
                request=Request(
                    command=tuple(map(str, request["command"])),
                    memory_bytes=_figures(request["memory_bytes"]),
                    cores_permille=_figures(request["cores_permille"]),
                    tflops=None if request["tflops"] is None else float(request["tflops"]),
                    mode=cast("Mode", str(request["mode"])),
                    devices=tuple(map(str, request["devices"])),
                    count=int(request["count"]),
                    oversubscribe=bool(request["oversubscribe"]),
                    policy=request["policy"],
                    allow_unknown=bool(request["allow_unknown"]),
                    measured=cast("Step", str(request.get("measured", DEFAULT_STEP))),
                    grace_ns=int(request.get("grace_ns", DEFAULT_GRACE_NS)),
                ),
                machine=plain["machine"],
                agent=plain.get("agent"),
            )
        except _NOT_READABLE:
            return None

    def write_record(self, number: int, record: Record) -> None:
        """Replaces the record of replica `number`."""
        self._write(f"replica-{number}.json", dataclasses.asdict(record))

    def read_record(self, number: int) -> Record | None:
        """The keeper's record of replica `number`; None if it is missing or damaged."""
        try:
            plain = self._read(f"replica-{number}.json")
            return Record(
                plain["phase"], int(plain["pid"]), plain["exit_code"], str(plain["reason"])
            )
        except _NOT_READABLE:
            return None

    def forget(self, number: int) -> None:
        """Removes the files of a replica that is gone."""
        for end in ("json", "lock"):
            (self.directory / f"replica-{number}.{end}").unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """The numbers of replicas that have files here, live or not."""
        found = (path.name[8:-5] for path in self.directory.glob("replica-*.lock"))
        return sorted(int(number) for number in found if number.isdecimal())

    def write_report(self, report: Mapping[str, object]) -> None:
        """Replaces the report. If the disk is full, only the report is lost."""
        with contextlib.suppress(OSError):
            self._write("report.json", report)

    def read_report(self) -> dict[str, Any]:
        """The last report; empty if there is none."""
        try:
            return self._read("report.json")
        except _NOT_READABLE:
            return {}

    def _write(self, name: str, plain: object) -> None:
        aside = self.directory / f".{name}.{os.getpid()}"
        try:
            aside.write_text(json.dumps(plain), encoding="utf-8")
            aside.replace(self.directory / name)
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    def _read(self, name: str) -> dict[str, Any]:
        plain = json.loads((self.directory / name).read_text(encoding="utf-8"))
        if not isinstance(plain, dict):
            raise TypeError(name)
        return plain


def sets_of(state: State) -> list[SetStore]:
    """All sets that have a directory, by name."""
    folder = state.directory / FOLDER
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(PenstockError):  # not a set, because its name is not valid
                found.append(SetStore(state, path.name))
    return found


def _figures(plain: list[int] | None) -> tuple[int, ...] | None:
    return None if plain is None else tuple(map(int, plain))


def _try_lock(file: Path) -> int | None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
