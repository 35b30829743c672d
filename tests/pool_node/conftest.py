"""Fixtures: a real agent on simulated GPUs that has joined a pool, and a manager for tests."""

from __future__ import annotations

import json
import threading

import pytest
from tests.agent.conftest import Node
from tests.pool_node.support.manager import GIB, Manager


class Member(Node):
    """An agent in a pool, whose log is read while it runs."""

    def start(self) -> None:
        super().start()
        self.log: list[dict] = []
        stream = self.process.stderr

        def read():
            for line in stream:
                if line.startswith("{"):
                    self.log.append(json.loads(line))

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(30)
        self._reader.join()
        self.process.stderr.close()
        return code

    def logged(self, event: str) -> list[dict]:
        return [one for one in list(self.log) if one["event"] == event]

    def tenants(self) -> dict:
        with self.client() as agent:
            return {one.name: one for one in agent.tenants()}

    def devices(self) -> list:
        with self.client() as agent:
            return list(agent.node().devices)


@pytest.fixture
def manager(tmp_path):
    made = Manager(tmp_path / "pool.sock").start()
    yield made
    made.stop()


@pytest.fixture
def make_member(tmp_path, manager):
    members = []

    def make(*options: str, start: bool = True, devices: int = 2) -> Member:
        has_pool = any(one.startswith("--pool=") for one in options)
        pool = () if has_pool else (f"--pool={manager.socket}",)
        simulate = f"--simulate=h200,{devices}"
        members.append(Member(tmp_path / f"state{len(members)}", simulate, *pool, *options))
        if start:
            members[-1].start()
        return members[-1]

    yield make
    for one in members:
        one.close()


@pytest.fixture
def member(make_member, manager) -> Member:
    made = make_member()
    manager.wait_joined()
    return made


@pytest.fixture
def shares(member):
    """Shares of the member's devices: `shares((0, 8, 100))` is 8 GiB and 10 % of device 0."""
    return shares_of(member)


def shares_of(member):
    uuids = [one.uuid for one in member.devices()]
    return lambda *parts: [(uuids[at], int(gib * GIB), cores) for at, gib, cores in parts]
