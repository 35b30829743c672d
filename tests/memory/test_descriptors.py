"""Memory that descriptors keep is charged until they are closed, once for all importers.

All descriptors of a driver are files of its control device: neither inode nor name tells which
memory one stands for. A descriptor keeps the memory wherever it is: in this process, in a forked
child, in another process, in a socket's queue.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.memory.support.sharers import Sharer, UsageRecorder, hand_round

MIB = 1 << 20
SIZE = 64 * MIB
OUT_OF_MEMORY = "2"


@pytest.fixture
def recorder(own_machine):
    return UsageRecorder(own_machine)


@pytest.fixture
def start(program, tenants, own_machine, tmp_path_factory):
    """Processes of a tenant that has room for one and a half times SIZE; anew at each call."""
    started = []

    def make(count: int, memory_bytes: int = SIZE * 3 // 2):
        name = tmp_path_factory.mktemp("t").name
        tenant = tenants(name=name, machine=own_machine, memory_bytes=memory_bytes)
        sharers = [Sharer(program("sharer"), tenant) for _ in range(count)]
        started.extend(sharers)
        return tenant, sharers

    yield make
    for sharer in started:
        sharer.kill()


WHAT = {
    "physical memory": ("make", "export 0"),
    "a dma-buf of physical memory": ("make", "dma-buf 0"),
    "a dma-buf of linear memory": ("alloc", "dma-buf 0"),
    "a pool": ("pool", "export 0"),
}


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("where", ["another process", "a socket's queue", "a child"])
@pytest.mark.parametrize("killed", [False, True], ids=["released", "killed"])
def test_memory_stays_charged_as_long_as_its_descriptor_is_open(
    start, recorder, what, where, killed
):
    tenant, (exporter, other) = start(2)
    make, export = WHAT[what]
    exporter.do(f"{make} 0 {SIZE}")
    descriptor = exporter.hand_out(export)
    other.put(descriptor)
    os.close(descriptor)
    if where != "a socket's queue":
        other.do("hold")
    if where == "a child":
        other.do("fork")
        other.do("drop")
    if killed:
        exporter.kill()
    else:
        exporter.do("release 0")
    tenant.reap()
    assert tenant.charged() == recorder.in_use() == SIZE
    assert other.tell(f"alloc 1 {SIZE}") == OUT_OF_MEMORY

    if where == "another process":
        other.do("drop")
    elif where == "a child":
        other.do("end-child")
    else:
        other.do("hold")
        other.do("drop")
    other.do(f"alloc 1 {SIZE}")
    assert tenant.charged() == recorder.in_use() == SIZE
    other.do("release 1")
    assert tenant.charged() == recorder.in_use() == 0


def test_a_program_that_keeps_only_descriptors_is_held_to_its_quota(start, recorder):
    tenant, (program,) = start(1, memory_bytes=4 * SIZE)
    for place in range(4):
        program.do(f"make {place} {SIZE}")
        program.do(f"keep {place}")
        program.do(f"release {place}")
    assert program.tell(f"make 4 {SIZE}") == OUT_OF_MEMORY
    assert program.tell("free") == "0"
    assert tenant.charged() == recorder.in_use() == 4 * SIZE
    program.do("drop")
    assert program.tell("free") == str(4 * SIZE)
    assert tenant.charged() == recorder.in_use() == 0


def test_memory_whose_descriptor_is_closed_before_it_is_released_goes_back_at_once(start, recorder):
    tenant, (exporter,) = start(1)
    exporter.do(f"make 0 {SIZE}")
    os.close(exporter.hand_out("export 0"))
    exporter.do("release 0")
    assert tenant.charged() == recorder.in_use() == 0


def test_each_of_several_descriptors_of_memory_keeps_it(start, recorder):
    tenant, (exporter, importer) = start(2)
    exporter.do(f"make 0 {SIZE}")
    first, second = exporter.hand_out("export 0"), exporter.hand_out("dma-buf 0")
    importer.put(first)
    importer.do(f"take 0 {SIZE}")
    exporter.do("release 0")
    importer.do("release 0")
    for descriptor in (first, second):
        tenant.reap()
        assert tenant.charged() == recorder.in_use() == SIZE
        os.close(descriptor)
    tenant.reap()
    assert tenant.charged() == recorder.in_use() == 0


def test_a_descriptor_that_is_left_over_can_be_imported_and_is_charged_once(start, recorder):
    tenant, (exporter, importer) = start(2)
    exporter.do(f"make 0 {SIZE}")
    importer.put(descriptor := exporter.hand_out("export 0"))
    os.close(descriptor)
    exporter.kill()
    tenant.reap()
    importer.do(f"take 0 {SIZE}")
    assert tenant.charged() == recorder.in_use() == SIZE
    importer.do("release 0")
    assert tenant.charged() == recorder.in_use() == 0
    assert tenant.peak() == SIZE


def test_an_importer_passes_imported_memory_on_without_a_second_charge(start, recorder):
    tenant, (first, second, third) = start(3)
    first.do(f"make 0 {SIZE}")
    hand_round(first, [second])
    second.do(f"take 0 {SIZE}")
    hand_round(second, [third])
    third.do(f"take 0 {SIZE}")
    first.kill()
    second.do("release 0")
    tenant.reap()
    assert tenant.charged() == recorder.in_use() == SIZE == tenant.peak()
    third.do("release 0")
    assert tenant.charged() == recorder.in_use() == 0


def test_a_pool_is_charged_once_for_all_its_importers(start, recorder):
    tenant, (exporter, importer) = start(2)
    exporter.do(f"pool 0 {SIZE}")
    hand_round(exporter, [importer])
    importer.do("take-pool 0")
    assert tenant.charged() == recorder.in_use() == SIZE
    exporter.kill()
    tenant.reap()
    assert tenant.charged() == recorder.in_use() == SIZE
    importer.do("release 0")
    assert tenant.charged() == recorder.in_use() == 0


RANKS = 4


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    order=st.permutations(range(RANKS)),
    ends=st.lists(st.sampled_from(["gives back", "killed"]), min_size=RANKS, max_size=RANKS),
    imported=st.booleans(),
)
def test_ranks_that_import_each_others_buffers_pay_for_each_once(
    start, recorder, order, ends, imported
):
    """As NCCL does. Memory that was sent and not imported costs nothing once its queue is gone."""
    tenant, ranks = start(RANKS, memory_bytes=RANKS * SIZE)
    for rank in ranks:
        rank.do(f"make 0 {SIZE}")
    for exporter in ranks:
        others = [rank for rank in ranks if rank is not exporter]
        hand_round(exporter, others)
        if imported:
            for place, rank in enumerate(others, start=1 + 4 * ranks.index(exporter)):
                rank.do(f"take {place} {SIZE}")
    assert tenant.charged() == recorder.in_use() == RANKS * SIZE == tenant.peak()
    for which, how in zip(order, ends, strict=True):
        rank = ranks[which]
        if how == "killed":
            rank.kill()
        else:
            rank.do("release 0")
            for exporter in range(RANKS):
                if imported and exporter != which:
                    rank.do(f"release {1 + 4 * exporter + which - (which > exporter)}")
        tenant.reap()
        assert tenant.charged() == recorder.in_use()
    for rank in ranks:
        rank.kill()
    tenant.reap()
    assert tenant.charged() == recorder.in_use() == 0


def test_more_descriptors_than_there_are_slots_for_shares_leave_nothing_uncharged(start, recorder):
    count, size = 800, 2 * MIB
    tenant, (exporter, importer) = start(2, memory_bytes=(count + 50) * size)
    descriptors = []
    for _ in range(count):
        exporter.do(f"make 0 {size}")
        descriptors.append(exporter.hand_out("export 0"))
        exporter.do("release 0")
    assert tenant.charged() == recorder.in_use() == count * size
    importer.put(descriptors[-1])
    importer.do(f"take 0 {size}")
    assert tenant.charged() == (count + 1) * size  # found in no share: charged again
    assert recorder.in_use() == count * size
    importer.do("release 0")
    for descriptor in descriptors:
        os.close(descriptor)
    assert exporter.tell("free") == str((count + 50) * size)
    assert tenant.charged() == recorder.in_use() == 0


def test_a_pool_that_found_no_slot_for_a_share_stays_charged_once_it_was_handed_out(
    start, recorder
):
    tenant, (exporter,) = start(1, memory_bytes=4 * SIZE)
    for _ in range(800):
        assert len(exporter.tell("export-ipc 4096")) == 128  # each takes a slot
    before = tenant.charged()
    exporter.do(f"pool 0 {SIZE}")
    descriptor = exporter.hand_out("export 0")
    exporter.do("release 0")
    assert tenant.charged() - before == SIZE
    assert tenant.charged() == recorder.in_use()
    os.close(descriptor)
    exporter.kill()
    tenant.reap()
    assert tenant.charged() == recorder.in_use() == 0


@pytest.mark.parametrize("killed", [False, True], ids=["released", "killed"])
def test_a_small_blocks_dma_buf_keeps_a_slab_charged_until_it_is_closed(start, killed):
    """A driver keeps the slab; the simulated device does not."""
    tenant, (exporter,) = start(1)
    exporter.do("alloc 0 4096")
    descriptor = exporter.hand_out("dma-buf 0")
    assert tenant.charged() == 4 * MIB
    if killed:
        exporter.kill()
    else:
        exporter.do("release 0")
    tenant.reap()
    assert tenant.charged() == 2 * MIB
    os.close(descriptor)
    tenant.reap()
    assert tenant.charged() == 0
