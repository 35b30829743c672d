"""Checks of the agents' and the manager's books while a scenario runs: nothing is given twice."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.pool_nodes.support.pool import Pool

EVERY_S = 0.1
LOOKS_PER_STATE = 10  # the manager's state costs a process


class Watcher:
    """Reads the books in a thread; `faults` are all that it found."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.faults: list[str] = []
        self.looks = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        memory = {
            card["uuid"]: card["memory_bytes"]
            for node in self.pool.state()["nodes"]
            for card in node["cards"]
        }
        while not self._stopped.wait(EVERY_S):
            for node in self.pool.machines:
                self._check_node(node, memory)
            self.looks += 1
            if self.looks % LOOKS_PER_STATE == 0:
                try:
                    state = self.pool.state()
                except AssertionError:
                    continue  # the manager is down
                self._check_blocks(state["applications"])

    def _check_node(self, node: str, memory: dict[str, int]) -> None:
        """The sum of the shares of each device is at most the device."""
        cores: dict[str, int] = {}
        taken: dict[str, int] = {}
        tenants = self.pool.tenants(node)
        for tenant in tenants:
            if tenant.suspension == "released":
                continue  # its share is given back
            for share in tenant.shares:
                cores[share.device_uuid] = cores.get(share.device_uuid, 0) + share.cores_permille
                taken[share.device_uuid] = taken.get(share.device_uuid, 0) + share.memory_bytes
        for uuid, permille in cores.items():
            if permille > 1000 or taken[uuid] > memory[uuid]:
                who = [(t.name, t.suspension) for t in tenants]
                self.faults.append(
                    f"{node} {uuid}: {permille} permille, {taken[uuid]} bytes: {who}"
                )

    def _check_blocks(self, applications: list[dict]) -> None:
        """No block has two holders."""
        runs = sorted(
            (run["first"], run["last"], one["name"]) for one in applications for run in one["runs"]
        )
        for before, after in itertools.pairwise(runs):
            if before[1] >= after[0]:
                self.faults.append(f"blocks given twice: {before} and {after}")
