"""Replica set: starts, restarts and ends replicas without ever blocking, to keep n running.

A replica consists of a keeper (see `replica_keeper`) and the tenant that the keeper started. The
keeper's lock and the processes show whether the replica is alive, so a new scaler finds the
replicas of a scaler that was killed. A failing replica never raises.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from penstock.autoscaling.process_tree import (
    Tree,
    children_of_all,
    descendants,
    roots,
    send,
    trees_of,
)
from penstock.autoscaling.replica_tenancy import OwnTenancy
from penstock.autoscaling.set_store import REPLICA_VARIABLE, SET_VARIABLE, Record
from penstock.node.tenants.tenant_processes import MACHINE_VARIABLE, TENANT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.autoscaling.replica_tenancy import Tenancy
    from penstock.autoscaling.set_store import SetSpec, SetStore

LOOK_PERIOD_NS = 500_000_000  # the shortest time between two scans of /proc
FIRST_WAIT_NS, LONGEST_WAIT_NS = 10**9, 60 * 10**9  # before a dead replica is restarted
STEADY_NS = 60 * 10**9  # after this time, a running replica's earlier deaths are forgotten
FIRST_RETRY_NS, LONGEST_RETRY_NS = 2 * 10**9, 30 * 10**9  # after admission refused a replica


class Phase(str, Enum):
    """The phase of a replica's life cycle."""

    starting = "starting"
    running = "running"
    ending = "ending"
    waiting = "waiting"  # it has died, and will be restarted after a delay
    refused = "refused"  # admission refused it; it is retried after a delay


@dataclass(frozen=True)
class Replica:
    """The current state of one replica."""

    number: int
    phase: Phase
    tenant: str
    members: tuple[int, ...] = ()
    running_since_ns: int | None = None  # as observed by this scaler; monotonic
    reason: str = ""


@dataclass
class _Entry:
    """This scaler's record of one replica number."""

    child: subprocess.Popen[bytes] | None = None
    tree: Tree = field(default_factory=Tree)
    phase: Phase = Phase.waiting
    running_since_ns: int | None = None
    deaths: int = 0
    start_at_ns: int = 0
    kill_at_ns: int | None = None  # set while the replica is being ended
    reason: str = ""

    @property
    def lives(self) -> bool:
        return self.phase in {Phase.starting, Phase.running, Phase.ending}


class ReplicaSet:
    """The replicas 1 to n of a set. Only the holder of the scaler's lock may create this object."""

    def __init__(
        self,
        store: SetStore,
        spec: SetSpec,
        grace_ns: int,
        environment: Mapping[str, str] | None = None,
        tenancy: Tenancy | None = None,
    ) -> None:
        """Adopts the replicas that are alive.

        `grace_ns` is the time from SIGTERM to SIGKILL, `environment` the replicas' environment.
        `tenancy` creates their tenants; if it is None, this process does.
        """
        self._store = store
        self._spec = spec
        self._grace_ns = grace_ns
        self._tenancy = tenancy or OwnTenancy(store.state)
        self._environment = dict(os.environ if environment is None else environment)
        self._entries: dict[int, _Entry] = {}
        self._looked_ns: int | None = None
        self._retry_at_ns = 0
        self._refusals = 0
        now_ns = time.monotonic_ns()
        for number in store.numbers():
            self._entries[number] = _Entry()
        self._look(now_ns)
        for number, entry in list(self._entries.items()):
            if not entry.lives:  # the replica ended under an earlier scaler
                del self._entries[number]
                store.forget(number)

    def tick(self, wanted: int, now_ns: int | None = None, *, force: bool = False) -> list[Replica]:
        """One iteration towards `wanted` replicas; returns all replicas by number. Call it often.

        With `force`, /proc is scanned even if it was just scanned, and replicas end without grace.
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        if not force and self._looked_ns and 0 <= now_ns - self._looked_ns < LOOK_PERIOD_NS:
            return self.replicas()
        self._look(now_ns)
        for number in sorted(self._entries, reverse=True):
            entry = self._entries[number]
            if entry.lives and (number > wanted or entry.kill_at_ns is not None):
                self._end(entry, now_ns, at_once=force)
            elif number > wanted:
                del self._entries[number]
                self._store.forget(number)
        self._start_missing(wanted, now_ns)
        return self.replicas()

    def replicas(self) -> list[Replica]:
        """All replicas as of the last iteration, including replicas that are waiting or ending."""
        return [
            Replica(
                number,
                entry.phase,
                f"{self._spec.name}-{number}",
                tuple(entry.tree.members),
                entry.running_since_ns,
                entry.reason,
            )
            for number, entry in sorted(self._entries.items())
        ]

    def highest(self) -> int:
        """The highest number of a live replica that is not being ended; 0 if there is none."""
        living = (n for n, e in self._entries.items() if e.lives and e.kill_at_ns is None)
        return max(living, default=0)

    def _look(self, now_ns: int) -> None:
        """Updates the state of every replica."""
        self._looked_ns = now_ns
        trees = trees_of(self._store.directory)
        for number in trees:
            self._entries.setdefault(number, _Entry())
        for number, entry in self._entries.items():
            entry.tree = trees.get(number, Tree())
            if entry.child is not None and entry.child.poll() is not None:
                entry.child = None
            kept = entry.child is not None or self._store.is_kept(number)
            if kept or entry.tree.keepers or entry.tree.members:
                self._note_life(number, entry, now_ns)
            elif entry.lives:
                self._note_end(number, entry, now_ns)

    def _note_life(self, number: int, entry: _Entry, now_ns: int) -> None:
        record = self._store.read_record(number)
        begun = bool(entry.tree.members) or (
            record is not None and record.phase == "running" and record.pid in entry.tree.keepers
        )
        if entry.kill_at_ns is not None:
            entry.phase = Phase.ending
        elif begun:
            if entry.running_since_ns is None:
                entry.running_since_ns = now_ns
                self._refusals = 0
            elif now_ns - entry.running_since_ns > STEADY_NS:
                entry.deaths = 0
            entry.phase, entry.reason = Phase.running, ""
        else:
            entry.phase = Phase.starting

    def _note_end(self, number: int, entry: _Entry, now_ns: int) -> None:
        """Handles a replica's end: by the scaler, by a refusal of admission, or by itself."""
        record = self._store.read_record(number)
        self._tenancy.clear(f"{self._spec.name}-{number}")
        ordered = entry.kill_at_ns is not None
        ran = entry.running_since_ns
        entry.kill_at_ns = entry.running_since_ns = None
        entry.phase, entry.reason, entry.start_at_ns = Phase.waiting, "", now_ns
        if ordered:
            return
        if record is not None and record.phase == "refused":
            entry.phase, entry.reason = Phase.refused, record.reason
            retry_ns = FIRST_RETRY_NS << min(self._refusals, 5)
            self._retry_at_ns = now_ns + min(LONGEST_RETRY_NS, retry_ns)
            self._refusals += 1
            return
        if ran is not None and now_ns - ran > STEADY_NS:
            entry.deaths = 0
        wait_ns = min(LONGEST_WAIT_NS, FIRST_WAIT_NS << min(entry.deaths, 10))
        entry.deaths += 1
        entry.start_at_ns = now_ns + wait_ns
        entry.reason = f"{_how_it_ended(record)}; started again in {wait_ns / 1e9:g} s"

    def _start_missing(self, wanted: int, now_ns: int) -> None:
        """Starts missing replicas, but only one at a time if admission has refused a replica."""
        refused = any(
            entry.phase is Phase.refused and number <= wanted
            for number, entry in self._entries.items()
        )
        for number in range(1, wanted + 1):
            entry = self._entries.setdefault(number, _Entry())
            if entry.lives:
                if refused and entry.phase is Phase.starting:
                    return  # this replica is being tried
                continue
            if now_ns < entry.start_at_ns:
                continue
            if refused and now_ns < self._retry_at_ns:
                entry.phase = Phase.refused
                continue
            self._start(number, entry, now_ns)
            if refused:
                return

    def _start(self, number: int, entry: _Entry, now_ns: int) -> None:
        environment = {
            **self._environment,
            REPLICA_VARIABLE: str(number),
            SET_VARIABLE: str(self._store.directory),
        }
        environment.pop(TENANT_VARIABLE, None)
        if self._spec.machine is not None:
            environment[MACHINE_VARIABLE] = self._spec.machine  # marks the machine as in use
        arguments = [str(self._store.state.directory), self._store.name, str(number)]
        (self._store.directory / f"replica-{number}.json").unlink(missing_ok=True)
        try:
            entry.child = subprocess.Popen(
                [sys.executable, "-c", self._tenancy.keeper, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must reach only the scaler, which decides
            )
        except OSError as error:  # no processes or memory left
            entry.phase = Phase.waiting
            entry.reason = f"cannot start: {error.strerror or error}"
            entry.start_at_ns = now_ns + FIRST_RETRY_NS
            return
        entry.phase, entry.reason, entry.running_since_ns = Phase.starting, "", None

    def _end(self, entry: _Entry, now_ns: int, *, at_once: bool) -> None:
        """Sends SIGTERM to the command, usually through its keeper, and SIGKILL after the grace."""
        directory = self._store.directory
        if entry.kill_at_ns is None:
            entry.kill_at_ns = now_ns + self._grace_ns
            entry.phase = Phase.ending
            # A keeper forwards the signal; a program may take a second signal to mean "at once".
            targets = entry.tree.keepers or roots(entry.tree.members)
            if not targets and entry.child is not None:
                targets = [entry.child.pid]
            for pid in targets:
                send(pid, signal.SIGTERM, directory)
        if at_once or now_ns >= entry.kill_at_ns:
            keepers = entry.tree.keepers or ([entry.child.pid] if entry.child else [])
            begun = [*keepers, *entry.tree.members]
            members = {*entry.tree.members, *descendants(begun, children_of_all())}
            for pid in members:
                send(pid, signal.SIGKILL)
            if not members:  # the keeper has not started its command yet
                for pid in keepers:
                    send(pid, signal.SIGKILL, directory)
        entry.reason = (
            "" if at_once else f"{max(0, entry.kill_at_ns - now_ns) / 1e9:.0f} s of grace"
        )


def _how_it_ended(record: Record | None) -> str:
    if record is None:
        return "ended before it said anything"
    if record.phase != "ended":
        return "was killed with its supervisor"
    if record.reason:
        return record.reason
    code = record.exit_code or 0
    if code > 128:
        return f"ended by signal {code - 128}"
    return f"ended with exit code {code}"
