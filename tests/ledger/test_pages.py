"""Pages: the supervisor writes them, other processes read them."""

from __future__ import annotations

import dataclasses
import fcntl
import mmap
import multiprocessing
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock_shim import pages
from penstock_shim._native import ffi
from penstock_shim.pages import DeviceLimit, Limits, PageError, QuotaWriter, UsagePage

UUIDS = [f"GPU-{n:08x}-1111-2222-3333-444444444444" for n in range(1, 18)]


def overwrite(path, offset, raw):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(raw)


def reader_of(kind):
    return {"quota": pages.read_quota, "usage": pages.read_usage}[kind]


both_kinds = pytest.mark.parametrize("kind", ["quota", "usage"])


def test_limits_read_back_as_they_were_written(tmp_path):
    limits = Limits(
        (
            DeviceLimit(UUIDS[0], 8 << 30, 700, context_reserve_bytes=256 << 20),
            DeviceLimit(UUIDS[1], 512, 1, allowance_permille=1000, sharers=3, busy_sharers=2),
        ),
        mode="elastic",
        suspended=True,
        allow_unknown=True,
    )  # fmt: skip
    path = tmp_path / "new" / "quota"
    with QuotaWriter.create(path, limits, tenant="ä", driver_path="/d.so", nvml_path="/n.so"):
        quota = pages.read_quota(path)
    assert quota.limits == limits
    assert (quota.tenant, quota.driver_path, quota.nvml_path) == ("ä", "/d.so", "/n.so")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_page_that_exists_is_never_replaced(tenant, limits):
    before = (tenant / "quota").read_bytes()
    with pytest.raises(PageError, match="exists already"):
        QuotaWriter.create(tenant / "quota", limits, tenant="b")
    with pytest.raises(PageError, match="exists already"):
        UsagePage.create(tenant / "usage")
    assert (tenant / "quota").read_bytes() == before
    assert sorted(p.name for p in tenant.iterdir()) == ["quota", "quota.lock", "usage"]


def test_creating_where_nothing_can_be_written_says_so_and_leaves_nothing(limits):
    with pytest.raises(PageError, match="cannot be written"):
        QuotaWriter.create(Path("/proc/quota"), limits, tenant="a")


@pytest.mark.parametrize("page", ["quota", "usage"])
def test_a_page_has_all_of_its_disk_or_memory_from_the_start(tenant, page):
    found = (tenant / page).stat()
    assert found.st_blocks * 512 >= found.st_size


def test_an_update_takes_force_in_the_same_file(tenant, limits):
    inode = (tenant / "quota").stat().st_ino
    with QuotaWriter.open(tenant / "quota") as writer:
        changed = dataclasses.replace(limits, suspended=True)
        assert writer.update(changed) == limits.generation + 2
        assert writer.limits == changed
    assert (tenant / "quota").stat().st_ino == inode


def test_a_reopened_page_goes_on_counting_generations(tenant, limits):
    for generation in (2, 3, 4):
        with QuotaWriter.open(tenant / "quota") as writer:
            assert writer.update(limits) == generation


def test_a_tenants_devices_cannot_be_changed_or_reordered_under_it(tmp_path):
    two = tuple(DeviceLimit(uuid, 1 << 30) for uuid in UUIDS[:2])
    with QuotaWriter.create(tmp_path / "quota", Limits(two), tenant="a") as writer:
        for devices, why in ((two[:1], "number of devices"), (two[::-1], "devices do not change")):
            with pytest.raises(ValueError, match=why):
                writer.update(Limits(devices))
        assert writer.limits == Limits(two)


def test_the_heartbeat_is_the_monotonic_clock(tenant):
    with QuotaWriter.open(tenant / "quota") as writer:
        before = time.monotonic_ns()
        beat = writer.heartbeat()
        assert before <= beat <= time.monotonic_ns()
        assert writer.read().heartbeat_ns == beat


def _raise_memory(path, times):
    with QuotaWriter.open(path) as writer:
        for _ in range(times):
            writer.change(
                lambda limits: dataclasses.replace(
                    limits,
                    devices=tuple(
                        dataclasses.replace(d, memory_bytes=d.memory_bytes + 512)
                        for d in limits.devices
                    ),
                )
            )


def test_two_writers_at_once_lose_no_change(tenant, limits):
    path = tenant / "quota"
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_raise_memory, args=(path, 200))
    process.start()
    threads = [threading.Thread(target=_raise_memory, args=(path, 200)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.join()
    assert process.exitcode == 0
    quota = pages.read_quota(path)
    assert quota.limits.devices[0].memory_bytes == limits.devices[0].memory_bytes + 600 * 512
    assert quota.limits.generation == 601


def test_a_reader_cannot_keep_the_writer_out_by_locking_the_page(tenant, limits):
    with (tenant / "quota").open("rb") as file, QuotaWriter.open(tenant / "quota") as writer:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert writer.update(limits) == 2


def test_a_writer_that_never_ends_is_reported_and_not_waited_for(tenant, limits, monkeypatch):
    monkeypatch.setattr("penstock_shim._quota_page._LOCK_WAIT_S", 0.05)
    with (tenant / "quota.lock").open("w") as file, QuotaWriter.open(tenant / "quota") as writer:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(PageError, match="locked by another writer"):
            writer.update(limits)


def _writes(writer, limits):
    return [writer.heartbeat, lambda: writer.mark_dead(0, 0), lambda: writer.update(limits)]


def test_a_closed_writer_says_that_it_is_closed(tenant, limits):
    writer = QuotaWriter.open(tenant / "quota")
    writer.close()
    for write in _writes(writer, limits):
        with pytest.raises(PageError, match="closed by its writer: open it anew"):
            write()
    writer.close()
    assert writer.limits == limits  # it can still be read


def test_a_writer_may_be_closed_in_the_middle_of_what_other_threads_write(tenant, limits):
    def write_till_closed(write, ends):
        try:
            while True:
                write()
        except BaseException as end:  # noqa: BLE001 - told below
            ends.append(type(end))

    for _ in range(50):
        writer, ends = QuotaWriter.open(tenant / "quota"), []
        threads = [
            threading.Thread(target=write_till_closed, args=(write, ends))
            for write in _writes(writer, limits)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.002)
        writer.close()
        for thread in threads:
            thread.join(20)
        assert ends == [PageError] * len(threads)


@both_kinds
def test_a_missing_page_says_what_to_do(tmp_path, kind):
    with pytest.raises(PageError, match="does not exist: start the tenant"):
        reader_of(kind)(tmp_path / kind)


@both_kinds
@pytest.mark.parametrize("length", [0, 1, 15, 16, 4096, -1])
def test_a_truncated_page_is_refused(tenant, kind, length):
    size = (tenant / kind).stat().st_size
    os.truncate(tenant / kind, length % size if length >= 0 else size - 1)
    with pytest.raises(PageError, match="shorter than the page"):
        reader_of(kind)(tenant / kind)


@both_kinds
def test_a_page_of_another_version_is_refused_not_guessed(tenant, kind):
    overwrite(tenant / kind, 8, struct.pack("<I", 99))
    both = (
        r"another version \(version 99; this release reads version 3 and the one before\): "
        r"use the release that wrote"
    )
    with pytest.raises(PageError, match=both):
        reader_of(kind)(tenant / kind)


@both_kinds
def test_a_file_that_is_no_page_is_refused(tenant, kind):
    overwrite(tenant / kind, 0, b"NOT A PAGE")
    with pytest.raises(PageError, match="not a page of this kind"):
        reader_of(kind)(tenant / kind)


@both_kinds
def test_a_directory_a_link_or_a_pipe_in_a_pages_place_is_refused_without_hanging(tenant, kind):
    path = tenant / kind
    path.rename(tenant / "real")
    path.symlink_to("real")
    with pytest.raises(PageError):
        reader_of(kind)(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(PageError, match="not a regular file"):
        reader_of(kind)(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(PageError, match="not a regular file"):
        reader_of(kind)(path)


def test_a_page_that_may_not_be_read_says_so(tenant):
    (tenant / "quota").chmod(0)
    tenant.chmod(0o755)
    # Reached by descriptor: the directories above may be closed to others, which is not meant here.
    fd = os.open(tenant, os.O_RDONLY)
    code = (
        "import os\nfrom pathlib import Path\nfrom penstock_shim import pages\n"
        "nobody = os.getuid() == 0 and (os.setgroups([]), os.setgid(65534), os.setuid(65534))\n"
        f"try: pages.read_quota(Path('/proc/self/fd/{fd}/quota'))\n"
        "except pages.PageError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, pass_fds=[fd]
    )
    assert "cannot be read" in done.stdout
    assert "check the permissions" in done.stdout


def test_scribbled_limits_are_an_error_not_a_figure(tenant):
    at = ffi.offsetof("penstock_quota_page", "copies") + ffi.offsetof(
        "penstock_limits", "device_count"
    )
    overwrite(tenant / "quota", at, struct.pack("<I", 4_000_000_000))
    with pytest.raises(PageError, match="out of bounds"):
        pages.read_quota(tenant / "quota")


def test_a_scribbled_usage_page_is_read_within_its_bounds(tenant):
    path = tenant / "usage"
    size = path.stat().st_size
    overwrite(path, 16, b"\xff" * (size - 16))
    snapshot = pages.read_usage(path)
    assert len(snapshot.slots) <= pages.MAX_SLOTS
    assert all(d.total_bytes <= pages.MAX_MEMORY_BYTES for d in snapshot.devices)
    overwrite(path, 16, os.urandom(size - 16))
    for slot in pages.read_usage(path).slots:
        assert slot.command.isprintable()
        assert 0 <= slot.pid < 1 << 22


def test_a_snapshot_shows_who_holds_what(tenant):
    """The test writes the slots as the shim does; the C tests show that the shim does so."""
    with (tenant / "usage").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        page = ffi.cast("penstock_usage_page *", ffi.from_buffer(memory))
        page.slots_high = 3
        page.pid_namespaces[4] = 4026531836 | 77 << 32
        page.ledger[0].total = 6 << 28
        page.slots[2].owner = 1 << 62 | 4 << 54 | 4321 << 32 | 9 << 28 | 1234
        page.slots[2].command = b"train"
        page.slots[2].ledger[0].charged = 6 << 28 | 17
        page.slots[2].gate[0].estimate_ns = 8
        del page
    with UsagePage.open(tenant / "usage") as usage:
        snapshot = usage.snapshot()
    (slot,) = snapshot.slots
    assert (slot.slot, slot.pid, slot.pid_namespace, slot.start_ticks) == (
        2,
        4321,
        4026531836,
        1234,
    )
    assert (slot.command, slot.state) == ("train", "live")
    assert slot.charged_bytes[0] == snapshot.devices[0].total_bytes == 6 * pages.UNIT_BYTES
    assert slot.estimate_ns[0] == 8


def test_reaping_honours_the_marks_of_the_quota_page_beside(tenant):
    owner = 1 << 62 | 255 << 54 | 1 << 32 | 5
    with (tenant / "usage").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        page = ffi.cast("penstock_usage_page *", ffi.from_buffer(memory))
        page.slots_high = 1
        page.slots[0].owner = owner
        del page
    with UsagePage.open(tenant / "usage") as usage, QuotaWriter.open(tenant / "quota") as writer:
        assert usage.reap() == 0
        writer.mark_dead(0, owner)
        assert usage.reap() == 1
        assert usage.snapshot().slots == ()


def test_reaping_a_truncated_page_is_an_error_and_kills_nobody(tenant):
    with UsagePage.open(tenant / "usage") as usage:
        os.truncate(tenant / "usage", 100)
        with pytest.raises(PageError, match="shorter"):
            usage.reap()
        with pytest.raises(PageError, match="shorter"):
            usage.snapshot()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uuid", "0"),
        ("uuid", "GPU-123"),
        ("uuid", "GPU-zzzzzzzz-1111-2222-3333-444444444444"),
        ("memory_bytes", 0),
        ("memory_bytes", -1),
        ("memory_bytes", 511),
        ("memory_bytes", 2.0**31),
        ("memory_bytes", 1 << 60),
        ("cores_permille", 0),
        ("cores_permille", 1001),
        ("cores_permille", True),
        ("allowance_permille", 699),
        ("context_reserve_bytes", -1),
        ("sharers", 0),
        ("busy_sharers", 2),
    ],
)
def test_a_limit_out_of_bounds_is_refused_before_it_reaches_a_page(limits, field, value):
    with pytest.raises(ValueError, match=field if field != "uuid" else "device UUID"):
        dataclasses.replace(limits.devices[0], **{field: value})


def test_a_tenant_has_one_to_sixteen_different_devices(limits):
    for devices in ((), (limits.devices[0],) * 2, tuple(DeviceLimit(u, 512) for u in UUIDS)):
        with pytest.raises(ValueError, match="device"):
            Limits(devices)


def test_a_uuid_survives_the_way_into_the_page_and_back():
    assert pages.uuid_from_bytes(pages.uuid_to_bytes(UUIDS[3])) == UUIDS[3]


def test_a_name_that_does_not_fit_its_field_is_refused(tmp_path, limits):
    with pytest.raises(ValueError, match="tenant"):
        QuotaWriter.create(tmp_path / "quota", limits, tenant="x" * 64)
    with pytest.raises(ValueError, match="driver_path"):
        QuotaWriter.create(tmp_path / "quota", limits, tenant="a", driver_path="/" * 256)
    assert not (tmp_path / "quota").exists()
