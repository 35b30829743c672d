"""Memory that processes share is charged to the tenant once, whichever process ends first.

Other preloaded shims do not count shared and imported memory (docs/faults-of-peers.md).
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.memory.support import scenarios
from tests.memory.support.sharers import Sharer, UsageRecorder, hand_round

MIB = 1 << 20
SIZE = 8 * MIB


def end(sharer: Sharer, how: str, giving_back: str) -> None:
    """Give back and live on, exit without giving back, or be killed."""
    if how == "gives back":
        sharer.do(giving_back)
        return
    if how == "killed":
        sharer.process.kill()
    sharer.process.communicate()
    sharer.tenant.reap()


def by_ipc(exporter: Sharer, importers: list[Sharer]) -> None:
    handle = exporter.tell("export-ipc", SIZE)
    for importer in importers:
        importer.do("open-ipc", handle)


def by_descriptor(exporter: Sharer, importers: list[Sharer]) -> None:
    exporter.do("make 0", SIZE)
    hand_round(exporter, importers)
    for importer in importers:
        importer.do("take 0", SIZE)


WAYS = {
    "ipc": (by_ipc, "free-ipc", "close-ipc"),
    "fd": (by_descriptor, "release 0", "release 0"),
}


@pytest.fixture
def start(program):
    started = []

    def make(tenant):
        started.append(Sharer(program("sharer"), tenant))
        return started[-1]

    yield make
    for sharer in started:
        sharer.kill()


@pytest.fixture
def three(start, tenants, own_machine, tmp_path_factory):
    """A tenant and three processes of it; anew at each call."""

    def make():
        tenant = tenants(name=tmp_path_factory.mktemp("t").name, machine=own_machine)
        return tenant, [start(tenant) for _ in range(3)]

    return make


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
def test_memory_that_is_handed_round_is_charged_once_until_its_last_holder_releases_it(
    three, own_machine, way, order, ends
):
    hand_out, give, let_go = WAYS[way]
    recorder = UsageRecorder(own_machine)
    tenant, sharers = three()
    hand_out(sharers[0], sharers[1:])
    for which, how in zip(order, ends, strict=True):
        assert tenant.charged() == SIZE == recorder.in_use()
        end(sharers[which], how, let_go if which else give)
    assert tenant.charged() == 0 == recorder.in_use()
    assert tenant.peak() == SIZE
    for sharer in sharers:
        sharer.kill()


def test_a_killed_exporter_whose_memory_is_open_elsewhere_leaves_no_room_behind(start, tenants):
    """The bytes are still on the device, so the next allocation must not fit."""
    tenant = tenants(memory_bytes=SIZE)
    exporter, importer = (start(tenant) for _ in range(2))
    assert importer.tell("open-ipc", exporter.tell("export-ipc", SIZE)) == "0"
    end(exporter, "killed", "")
    assert importer.tell("make 0", SIZE) == "2"
    assert importer.tell("close-ipc") == "0"
    importer.do("make 0", SIZE)
    end(importer, "exits", "")
    assert tenant.charged() == 0


def test_a_name_used_again_for_other_memory_does_not_carry_the_old_charge(start, tenants):
    tenant = tenants()
    exporter, importer = (start(tenant) for _ in range(2))
    assert importer.tell("open-ipc", exporter.tell("export-ipc", SIZE)) == "0"
    assert exporter.tell("free-ipc") == "0"
    handle = exporter.tell("export-ipc", 3 * SIZE)
    assert tenant.charged() == 4 * SIZE  # the old one is still open
    assert importer.tell("close-ipc") == "0"
    assert tenant.charged() == 3 * SIZE
    assert importer.tell("open-ipc", handle) == "0"
    assert tenant.charged() == 3 * SIZE
    end(exporter, "killed", "")
    assert tenant.charged() == 3 * SIZE
    end(importer, "exits", "")
    assert tenant.charged() == 0


def test_memory_of_another_tenants_process_is_charged_to_the_tenant_that_opens_it(tenants):
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
