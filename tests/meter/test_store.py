"""The file of readings: whole after every kill, on a full disk and when it was damaged."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from tests.meter.support.metering import ALICE, GIB, START, UUID, S, another, later, reading, stored

from penstock.model import PenstockError
from penstock.node.metering.account import first
from penstock.node.metering.batch import MOST_ROWS, Batch
from penstock.node.metering.meter import Meter
from penstock.node.metering.store import FILE, MIGRATIONS, Store
from penstock.node.metering.usage import read_usage_since

if TYPE_CHECKING:
    from pathlib import Path


def wait_until(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def one_batch() -> Batch:
    batch = Batch()
    device = reading(3, GIB).devices[0]
    batch.put((ALICE.incarnation, UUID), ALICE, later(5), first(later(5), device))
    return batch


def test_a_batch_that_turns_out_to_be_stored_is_not_stored_again(tmp_path):
    batch = one_batch()
    for _ in range(2):
        with Store(tmp_path / FILE) as store:
            store.commit(batch)
            store.commit(batch)
    assert stored(tmp_path).charged_ns == 3 * S


def test_the_file_is_its_owners_alone_and_synced(tmp_path):
    old = os.umask(0)
    try:
        meter = Meter(tmp_path / "made")
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
        for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", "meter.lock"):
            assert (tmp_path / "made" / name).stat().st_mode & 0o777 == 0o600
        meter.close()
    finally:
        os.umask(old)
    connection = sqlite3.connect(tmp_path / "made" / FILE)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    connection.close()


def test_a_file_of_a_newer_release_is_refused_and_left_as_it_is(tmp_path):
    Meter(tmp_path).close()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = (tmp_path / FILE).read_bytes()
    for _ in range(2):  # the lock is let go of, too
        with pytest.raises(PenstockError, match="newer release"):
            Meter(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_file_of_another_program_is_refused_and_left_as_it_is(tmp_path):
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(PenstockError, match="not a file of penstock"):
        Meter(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_second_meter_in_the_same_directory_is_refused_with_the_pid_of_the_first(tmp_path):
    meter = Meter(tmp_path)
    with pytest.raises(PenstockError, match=f"pid {os.getpid()} has its lock"):
        Meter(tmp_path)
    meter.close()
    Meter(tmp_path).close()


@pytest.mark.parametrize("where", [slice(0, 4096), slice(4096, None), slice(2000, None)])
def test_a_damaged_file_is_set_aside_and_metering_goes_on(tmp_path, where):
    meter = Meter(tmp_path, at=START)
    meter.observe(START, [reading(0)])
    assert meter.close(later(1))
    raw = bytearray((tmp_path / FILE).read_bytes())
    raw[where] = b"\xa5" * len(raw[where])
    (tmp_path / FILE).write_bytes(raw)
    meter = Meter(tmp_path, at=later(2))
    meter.observe(later(2), [reading(2)])
    wait_until(lambda: meter.flush(later(3), wait_s=1))
    (aside,) = meter.health(later(3)).damaged
    assert aside.exists()
    meter.observe(later(4), [reading(4)])
    assert meter.close(later(4), wait_s=10)
    assert stored(tmp_path).charged_ns == 4 * S


def test_a_directory_that_is_a_file_is_an_error_that_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match="cannot keep meter readings"):
        Meter(tmp_path / "file")


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PenstockError, match="others can write to it"):
        Meter(tmp_path / "open")


def test_tenants_that_ended_together_are_stored_by_one_flush(tmp_path):
    meter = Meter(tmp_path, at=START)
    tenants = [another(n) for n in range(50)]
    meter.observe(START, [reading(0, who=who) for who in tenants])
    for who in tenants:
        meter.close_tenant(later(3), reading(2, who=who), wait_s=0)
    assert meter.flush(later(3), wait_s=10)
    assert stored(tmp_path).charged_ns == 100 * S
    assert meter._open == {}
    meter.close(later(4))


def test_a_tenant_without_readings_is_forgotten_and_known_again_when_it_returns(tmp_path):
    meter = Meter(tmp_path, at=START)
    meter.observe(START, [reading(0)])
    meter.observe(later(2), [reading(2)])
    assert meter.flush(later(2), wait_s=10)
    assert meter.flush(later(1000), wait_s=10)
    assert meter._open == {}
    meter.observe(later(1001), [reading(3)])
    assert meter.close(later(1001), wait_s=10)
    assert stored(tmp_path).charged_ns == 3 * S


def test_a_reader_beside_the_meter_sees_whole_batches_and_holds_nobody_up(tmp_path):
    meter = Meter(tmp_path, at=START)
    meter.observe(START, [reading(0)])
    for second in range(1, 40):
        meter.observe(later(second), [reading(second / 2, GIB)])
        assert meter.flush(later(second), wait_s=10)
        usage = read_usage_since(
            START.wall_ns // S - 60, START.wall_ns // S + 60, directory=tmp_path
        )
        (row,) = usage.rows
        assert row.amounts.charged_ns == second * S // 2
        assert row.amounts.metered_ns == second * S
    meter.close(later(40))


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=False)


def fill(folder: Path) -> None:
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={folder}/fill", "bs=4k"], capture_output=True, check=False
    )
    assert os.statvfs(folder).f_bavail == 0


def test_on_a_full_disk_metering_goes_on_and_catches_up_when_there_is_room(small_disk):
    meter = Meter(small_disk, at=START)
    meter.observe(START, [reading(0)])
    assert meter.flush(START, wait_s=10)
    fill(small_disk)
    tenants = [another(n, tenant=f"t{n}") for n in range(300)]  # more than fits into free pages
    for second in range(1, 120):
        at = later(second)
        # Each begins now, so that the store is asked about it on the full disk.
        meter.observe(at, [reading(second / 2)])
        meter.observe(at, [reading(second, who=who) for who in tenants])
        meter.flush(at)
    # Longer than the log was before: it cannot have gone into room that was there.
    assert not meter.flush(later(120), wait_s=0.2)
    health = meter.health(later(120))
    assert health.failures > 0
    assert "full" in health.problem
    assert health.behind_s > 30
    (small_disk / "fill").unlink()
    wait_until(lambda: meter.flush(later(120), wait_s=1))
    assert meter.health(later(120)).behind_s == 0
    assert meter.close(later(121), wait_s=10)
    assert stored(small_disk, "tenant = 'train'").charged_ns == 59.5 * S
    assert stored(small_disk, "tenant != 'train'").charged_ns == 300 * 119 * S


def test_a_disk_full_from_the_start_loses_nothing_of_tenants_that_came_and_went(small_disk):
    meter = Meter(small_disk, at=START)
    meter.observe(START, [reading(0, GIB)])
    assert meter.close_tenant(later(4), reading(2, GIB), wait_s=10)[0]
    assert meter.close(later(4), wait_s=10)
    fill(small_disk)
    meter = Meter(small_disk, at=later(5))
    guest = another(1, tenant="guest")
    meter.observe(later(5), [reading(0, GIB, who=guest)])
    meter.observe(later(8), [reading(3, GIB, who=guest)])
    done, _ = meter.close_tenant(later(9), reading(3.5, GIB, who=guest), wait_s=0.1)
    assert not done
    (small_disk / "fill").unlink()
    wait_until(lambda: meter.flush(later(10), wait_s=1))
    assert meter.close(later(10), wait_s=10)
    assert stored(small_disk, "tenant = 'guest'").charged_ns == 3.5 * S
    assert stored(small_disk, "tenant = 'train'").charged_ns == 2 * S


def test_a_file_that_cannot_be_made_yet_loses_nothing_either(small_disk):
    fill(small_disk)
    meter = Meter(small_disk, at=START)
    meter.observe(START, [reading(0)])
    meter.observe(later(30), [reading(20)])
    assert not meter.flush(later(30))
    (small_disk / "fill").unlink()
    wait_until(lambda: meter.flush(later(31), wait_s=1))
    assert meter.close(later(31), wait_s=10)
    assert stored(small_disk).charged_ns == 20 * S


def test_rows_that_wait_for_a_full_disk_become_coarser_and_stay_bounded():
    batch = Batch()
    whole = 0
    device = reading(0).devices[0]
    for minute in range(400):
        for tenant in range(200):
            who = another(tenant)
            at = later(60 * minute)
            step = first(at, reading((minute + tenant) / 100, origin_ns=None).devices[0])
            batch.put((who.incarnation, device.device_uuid), who, at, step)
            whole += step.amounts.charged_ns
            assert len(batch.usage) <= MOST_ROWS + 400
    assert sum(part.charged_ns for part in batch.usage.values()) == whole
    assert len(batch.usage) < 400 * 200


def test_a_closed_file_is_readable_where_nothing_can_be_written(small_disk):
    meter = Meter(small_disk, at=START)
    meter.observe(START, [reading(0)])
    assert meter.close_tenant(later(4), reading(2), wait_s=10)[0]
    assert meter.close(later(4), wait_s=10)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    since_s = START.wall_ns // S - 60
    (row,) = read_usage_since(since_s, since_s + 120, directory=small_disk).rows
    assert row.amounts.charged_ns == 2 * S
