"""Status of the replica sets of a state directory, and stopping of a set without a scaler."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.autoscaling.process_tree import trees_of
from penstock.autoscaling.replicas import ReplicaSet
from penstock.autoscaling.set_store import SetStore, sets_of
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.node.tenants.state import State

POLL_S = 0.1


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica: its phase and its processes."""

    number: int
    tenant: str
    phase: str
    pids: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class SetStatus:
    """One set: the last scaler's decision as reported, and the live replicas as seen now."""

    name: str
    command: tuple[str, ...]
    scaler_pid: int | None  # None if no scaler runs; the replicas keep running
    wanted: int | None
    least: int | None
    most: int | None
    reason: str
    decided: str  # time of the report in UTC, ISO 8601
    replicas: tuple[ReplicaStatus, ...]

    def as_dict(self) -> dict[str, object]:
        """The status as plain values, for JSON and YAML."""
        return {
            "name": self.name,
            "command": list(self.command),
            "scaler_pid": self.scaler_pid,
            "wanted": self.wanted,
            "min": self.least,
            "max": self.most,
            "reason": self.reason,
            "time": self.decided,
            "replicas": [
                {
                    "number": replica.number,
                    "tenant": replica.tenant,
                    "phase": replica.phase,
                    "pids": list(replica.pids),
                    "reason": replica.reason,
                }
                for replica in self.replicas
            ],
        }


def statuses(state: State) -> list[SetStatus]:
    """The status of each set that has a scaler or live replicas."""
    found = (_status(store) for store in sets_of(state))
    return [status for status in found if status.scaler_pid is not None or status.replicas]


def _status(store: SetStore) -> SetStatus:
    report, spec = store.read_report(), store.read_spec()
    scaler = store.scaler_pid()
    said = {int(one["number"]): one for one in report.get("replicas", []) if "number" in one}
    trees = trees_of(store.directory)
    replicas = []
    for number in sorted({*trees, *(said if scaler else ())}):
        word = said.get(number, {})
        tree = trees.get(number)
        seen = "running" if tree and tree.members else "starting" if tree else None
        phase = str(word.get("phase", "")) if scaler else ""
        if seen and phase not in {"ending", seen}:
            phase = seen
        replicas.append(
            ReplicaStatus(
                number,
                f"{store.name}-{number}",
                phase,
                tuple(sorted(tree.members)) if tree else (),
                str(word.get("reason", "")) if scaler else "",
            )
        )
    return SetStatus(
        store.name,
        tuple(spec.request.command) if spec else (),
        scaler,
        report.get("wanted"),
        report.get("min"),
        report.get("max"),
        str(report.get("reason", "")),
        str(report.get("time", "")),
        tuple(replicas),
    )


def stop(state: State, name: str, grace_ns: int) -> int:
    """Ends all replicas of a set without a scaler, which takes up to the grace; returns how many.

    Raises:
        PenstockError: there is no such set, or a scaler has it.
    """
    store = SetStore(state, name)
    spec = store.read_spec()
    if spec is None:
        names = ", ".join(one.name for one in sets_of(state))
        raise PenstockError(
            f"no set {name!r} in {state.directory}",
            f"it has only {names}" if names else "it has no sets",
            "list the sets with penstock scale status",
        )
    lock = store.lock_scaler()
    try:
        replicas = ReplicaSet(store, spec, grace_ns)
        count = len(replicas.replicas())
        while replicas.tick(0):
            time.sleep(POLL_S)
    finally:
        os.close(lock)
    return count
