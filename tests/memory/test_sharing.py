"""Memory that processes hand to each other is charged once to the tenant, whoever ends first.

facts/peers.md: "cuMemAllocFromPoolAsync, arrays, IPC, VMM import … not counted: memory escapes".
"""

from __future__ import annotations

import subprocess

import pytest
import scenarios
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_shim import simulator

MIB = 1 << 20
SIZE = 8 * MIB


class Sharer:
    """A process of `programs/sharer.c` that does as it is told."""

    def __init__(self, program, tenant) -> None:
        self.process = subprocess.Popen(
            [program],
            env=tenant.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.tenant = tenant
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, *words: object) -> str:
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def end(self, how: str, giving_back: str) -> None:
        """Give back and live on, exit without giving back, or be killed."""
        if how == "gives back":
            assert self.tell(giving_back) == "0"
            return
        if how == "killed":
            self.process.kill()
        self.process.communicate()
        self.tenant.reap()


def in_use(machine) -> int:
    """Bytes that living processes hold on device 0, beyond their contexts, in its own words."""
    with simulator.Machine(machine) as opened:
        context = opened.devices()[0].context_bytes
        held = [r.memory_bytes for r in opened.record(0) if r.alive]
    return sum(held) - context * sum(1 for bytes_ in held if bytes_)


WAYS = {
    "ipc": ("export-ipc", "free-ipc", "open-ipc", "close-ipc"),
    "fd": ("export-fd", "release-fd", "import-fd", "release-fd"),
}


@pytest.fixture
def three(program, tenants, own_machine, tmp_path_factory):
    """A tenant and three processes of it; anew at each call."""
    started = []

    def make():
        tenant = tenants(name=tmp_path_factory.mktemp("t").name, machine=own_machine)
        sharers = [Sharer(program("sharer"), tenant) for _ in range(3)]
        started.extend(sharers)
        return tenant, sharers

    yield make
    for sharer in started:
        sharer.process.kill()
        sharer.process.communicate()


@pytest.mark.parametrize("way", WAYS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    order=st.permutations(range(3)),
    ends=st.lists(st.sampled_from(["gives back", "exits", "killed"]), min_size=3, max_size=3),
)
def test_what_is_handed_round_is_charged_once_until_its_last_holder_lets_go(
    three, own_machine, way, order, ends
):
    export, give, take, let_go = WAYS[way]
    tenant, sharers = three()
    handle = sharers[0].tell(export, SIZE)
    for importer in sharers[1:]:
        assert importer.tell(take, handle) == "0"
    for which, how in zip(order, ends, strict=True):
        assert tenant.charged() == SIZE == in_use(own_machine)
        sharers[which].end(how, let_go if which else give)
    assert tenant.charged() == 0 == in_use(own_machine)
    assert tenant.peak() == SIZE
    for sharer in sharers:
        sharer.process.kill()
        sharer.process.communicate()


def test_a_killed_exporter_whose_memory_is_open_elsewhere_leaves_no_room_behind(program, tenants):
    """Nobody rides free: the bytes are on the device, so the next allocation does not fit."""
    tenant = tenants(memory_bytes=SIZE)
    exporter, importer = (Sharer(program("sharer"), tenant) for _ in range(2))
    assert importer.tell("open-ipc", exporter.tell("export-ipc", SIZE)) == "0"
    exporter.end("killed", "")
    assert importer.tell("export-fd", SIZE) == "2"
    assert importer.tell("close-ipc") == "0"
    assert importer.tell("export-fd", SIZE).startswith("/proc")
    importer.end("exits", "")
    assert tenant.charged() == 0


def test_a_name_used_again_for_other_memory_does_not_carry_the_old_charge(program, tenants):
    tenant = tenants()
    exporter, importer = (Sharer(program("sharer"), tenant) for _ in range(2))
    assert importer.tell("open-ipc", exporter.tell("export-ipc", SIZE)) == "0"
    assert exporter.tell("free-ipc") == "0"
    handle = exporter.tell("export-ipc", 3 * SIZE)
    assert tenant.charged() == 4 * SIZE  # the old one is still open
    assert importer.tell("close-ipc") == "0"
    assert tenant.charged() == 3 * SIZE
    assert importer.tell("open-ipc", handle) == "0"
    assert tenant.charged() == 3 * SIZE
    exporter.end("killed", "")
    assert tenant.charged() == 3 * SIZE
    importer.end("exits", "")
    assert tenant.charged() == 0


def test_memory_of_another_tenants_process_is_charged_to_who_opens_it(tenants):
    owner_tenant, tenant = tenants(name="owner"), tenants(name="user")
    with owner_tenant.start(scenarios.ipc_owner) as owner:
        tenant.run(scenarios.ipc_user, owner.stdout.readline().strip())
        assert owner_tenant.charged() == 4 * MIB
        owner.communicate("end\n", timeout=60)


def test_memory_imported_from_another_tenant_is_charged_as_it_is_mapped(tenants, tmp_path):
    owner_tenant, tenant = tenants(name="owner"), tenants(name="user")
    with owner_tenant.start(scenarios.export_to, tmp_path / "socket") as exporter:
        assert exporter.stdout.readline() == "listening\n"
        tenant.run(scenarios.import_from, tmp_path / "socket")
        assert owner_tenant.charged() == 8 * MIB
        exporter.communicate("end\n", timeout=60)
