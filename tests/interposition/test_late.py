"""Opened late, not preloaded: the shim stands in the place of libcuda.so.1, as in containers."""

from __future__ import annotations

import contextlib
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from penstock_shim import paths, simulator
from penstock_shim.pages import read_usage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
LIMIT, CONTEXT = 64 * MIB, 16 * MIB
MOST_TLS_BYTES = 128
FILLER_BYTES = 32
FILLER = f"""
static __thread char room[{FILLER_BYTES}];
char *filler(void) {{ return room; }}
"""
SHIMS = {"libcuda.so.1": paths.so_path(), "libnvidia-ml.so.1": paths.nvml_so_path()}


@pytest.fixture
def late(compile_c) -> Path:
    return compile_c("late.c", "-ldl", "-pthread")


@pytest.fixture
def in_place(tmp_path) -> Path:
    """A folder with the shim where programs look for the driver."""
    folder = tmp_path / "in-place"
    folder.mkdir()
    for name, library in SHIMS.items():
        (folder / name).symlink_to(library)
    return folder


@dataclass
class Seen:
    """A program that has done what it should, and lives."""

    words: list[str]
    process: subprocess.Popen[str]


@pytest.fixture
def run(late, in_place, tmp_path):
    @contextlib.contextmanager
    def started(tenant, *words: object) -> Iterator[Seen]:
        environment = tenant.environment(LD_LIBRARY_PATH=str(in_place))
        del environment["LD_PRELOAD"]
        with subprocess.Popen(
            [late, *map(str, words)],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            said = []
            for line in process.stdout:
                said.append(line.strip())
                if said[-1] == "ready":
                    break
            try:
                if said[-1:] != ["ready"]:
                    said.append(process.stderr.read())
                yield Seen(said, process)
            finally:
                process.stdin.close()
                process.wait(timeout=30)

    return started


def slots_of(tenant, seen: Seen) -> list:
    return [one for one in read_usage(tenant.folder / "usage").slots if one.pid == seen.process.pid]


def on_device(tenant, seen: Seen) -> int:
    """The memory of the process by the device's own record."""
    with simulator.Machine(tenant.machine) as machine:
        return sum(r.memory_bytes for r in machine.record(0) if r.pid == seen.process.pid)


@pytest.mark.parametrize("library", SHIMS.values(), ids=SHIMS)
def test_thread_local_storage_fits_the_room_that_late_libraries_share(library):
    """The loader keeps some 500 bytes for all late libraries, and loads none that needs more."""
    headers = subprocess.run(
        ["readelf", "-lW", library], capture_output=True, text=True, check=True
    ).stdout
    sizes = re.findall(r"^\s+TLS(?:\s+0x\w+){4}\s+(0x\w+)", headers, re.MULTILINE)
    assert sum(int(size, 16) for size in sizes) <= MOST_TLS_BYTES


@pytest.mark.parametrize("library", SHIMS.values(), ids=SHIMS)
def test_a_library_of_the_shim_stays_when_it_is_closed(library):
    dynamic = subprocess.run(
        ["readelf", "-dW", library], capture_output=True, text=True, check=True
    ).stdout
    assert "NODELETE" in dynamic


def test_a_shim_opened_and_closed_a_thousand_times_has_one_slot_and_its_charges(run, make_tenant):
    tenant = make_tenant(LIMIT, context_reserve_bytes=CONTEXT)
    with run(tenant, "loop", 1000) as seen:
        assert seen.words == ["ready"]
        assert len(slots_of(tenant, seen)) == 1
        assert tenant.charged() == CONTEXT + 6 * MIB
        held = on_device(tenant, seen)
        seen.process.stdin.write("\n")
        seen.process.stdin.flush()
        assert seen.process.stdout.readline() == "ready\n"
        assert tenant.charged() == 0  # it knows what it gave when it was opened first
        assert on_device(tenant, seen) <= held - 6 * MIB


def test_threads_that_open_the_shim_at_once_share_one_slot(run, make_tenant):
    tenant = make_tenant(LIMIT)
    for _ in range(5):
        with run(tenant, "threads", 8) as seen:
            assert seen.words == ["ready"]
            assert len(slots_of(tenant, seen)) == 1
            assert tenant.charged() == 16 * MIB
        tenant.reap()


def test_two_namespaces_are_charged_both(run, make_tenant):
    tenant = make_tenant(LIMIT)
    with run(tenant, "spaces") as seen:
        assert seen.words == ["ready"]
        assert tenant.charged() == 4 * MIB
        assert on_device(tenant, seen) > 4 * MIB
        assert slots_of(tenant, seen)
    tenant.reap()
    assert tenant.charged() == 0


def test_memory_of_two_namespaces_counts_against_one_quota(run, make_tenant):
    with run(make_tenant(3 * MIB), "spaces") as seen:
        assert seen.words == ["cuMemAlloc_v2 answers 2\n"]


@pytest.fixture
def fillers(tmp_path) -> None:
    """Libraries that need room in the static TLS block, which the loader never gets back."""
    folder = tmp_path / "fillers"
    folder.mkdir()
    (folder / "filler.c").write_text(FILLER)
    command = ["gcc", "-shared", "-fPIC", "-ftls-model=initial-exec", "-o", folder / "0.so"]
    subprocess.run([*command, folder / "filler.c"], check=True)
    for number in range(1, 200):
        (folder / f"{number}.so").write_bytes((folder / "0.so").read_bytes())


@pytest.mark.usefixtures("fillers")
def test_the_shim_is_loaded_when_other_libraries_have_taken_nearly_all_room(run, make_tenant):
    tenant = make_tenant(LIMIT)
    with run(tenant, "fill") as seen:
        room, why = seen.words
    # No room at all: there is no driver for this program, and never one without a quota.
    assert 8 < int(room) < 200
    assert "static TLS" in why
    assert tenant.charged() == 0
    left = (MOST_TLS_BYTES + 64) // FILLER_BYTES  # beside it, what aligning may take
    with run(tenant, "fill", int(room) - left) as seen:
        assert seen.words[1:] == ["ready"]
        assert tenant.charged() == 2 * MIB
        assert len(slots_of(tenant, seen)) == 1
