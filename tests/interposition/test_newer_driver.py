"""A program that brings a newer driver along keeps it: NVIDIA's forward compatibility packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock_shim import paths

MIB = 1 << 20
LIMIT = 777 * MIB
MACHINES, OLDER, NEWER = "535.261.03", "470.82.01", "580.95.05"

# Which drivers the process has mapped in the end, and whether the shim answered.
PROGRAM = """
import ctypes, re, sys
cuda = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libcuda.so.1")
device, total = ctypes.c_int(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
print(total.value)
mapped = open("/proc/self/maps").read()
for path in sorted(set(re.findall(r"/\\S*\\.so\\.[0-9.]*[0-9]$", mapped, re.M))):
    print(path)
"""


def put_driver(folder: Path, version: str, source: Path | None = None) -> Path:
    """A driver as its vendor installs it: a versioned file, and a link of the SONAME to it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"libcuda.so.{version}"
    shutil.copy(source or paths.sim_dir() / "libcuda.so.1", file)
    (folder / "libcuda.so.1").symlink_to(file.name)
    return file


@pytest.fixture
def machines_driver(tmp_path) -> Path:
    return put_driver(tmp_path / "machine-driver", MACHINES)


@pytest.fixture
def tenant(make_tenant, machines_driver):
    return make_tenant(LIMIT, driver=machines_driver.with_name("libcuda.so.1"))


def drivers(tenant, *words: str | Path, before: list[str] | None = None, **variables: str):
    """The answer of cuDeviceTotalMem, and the driver files that are mapped."""
    command = [*(before or []), "/usr/bin/env", "python3", "-c", PROGRAM, *map(str, words)]
    done = subprocess.run(
        command, env=tenant.environment(**variables), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + tenant.log()
    total, *mapped = done.stdout.splitlines()
    return int(total), [path for path in mapped if "libcuda.so." in path]


def test_without_a_newer_driver_the_machines_is_used(tenant, machines_driver, tmp_path):
    assert drivers(tenant, LD_LIBRARY_PATH=str(tmp_path)) == (LIMIT, [str(machines_driver)])


@pytest.mark.parametrize("version", ["580.95.05", "535.261.04", "535.300", "1000.1"])
def test_a_newer_driver_in_the_library_path_is_the_one_below_the_shim(tenant, tmp_path, version):
    newer = put_driver(tmp_path / "compat", version)
    folders = f"/nowhere:{tmp_path}::relative:{newer.parent}"
    assert drivers(tenant, LD_LIBRARY_PATH=folders) == (LIMIT, [str(newer)])
    assert f"{newer.with_name('libcuda.so.1')}, newer than this machine's" in tenant.log()


@pytest.mark.parametrize("version", [OLDER, "535.261.02", "535.261", "99.1000"])
def test_an_older_driver_is_passed_over_and_the_log_says_so(
    tenant, machines_driver, tmp_path, version
):
    older = put_driver(tmp_path / "compat", version)
    seen = drivers(tenant, LD_LIBRARY_PATH=str(older.parent))
    assert seen == (LIMIT, [str(machines_driver)])
    why = "contains no version" if version.startswith("99.") else "is older than this machine's"
    assert f"{older.with_name('libcuda.so.1')} is ignored" in tenant.log()
    assert why in tenant.log()


def test_the_machines_own_driver_ends_the_search_as_it_does_for_the_loader(
    tenant, machines_driver, tmp_path
):
    newer = put_driver(tmp_path / "compat", NEWER)
    first_own = f"{machines_driver.parent}:{newer.parent}"
    assert drivers(tenant, LD_LIBRARY_PATH=first_own) == (LIMIT, [str(machines_driver)])
    first_newer = f"{newer.parent}:{machines_driver.parent}"
    assert drivers(tenant, LD_LIBRARY_PATH=first_newer) == (LIMIT, [str(newer)])


def test_the_shim_mounted_in_the_drivers_place_ends_the_search_too(
    tenant, machines_driver, tmp_path
):
    newer = put_driver(tmp_path / "compat", NEWER)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "libcuda.so.1").hardlink_to(paths.so_path())
    for folders, chosen in (
        ((mounted, newer.parent), machines_driver),
        ((newer.parent, mounted), newer),
    ):
        path = ":".join(map(str, folders))
        assert drivers(tenant, LD_LIBRARY_PATH=path) == (LIMIT, [str(chosen)])
    assert "ignored" not in tenant.log()


def nothing_there(folder: Path) -> None:
    folder.mkdir()


def link_to_nothing(folder: Path) -> None:
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{NEWER}")


def a_directory(folder: Path) -> None:
    (folder / f"libcuda.so.{NEWER}").mkdir(parents=True)
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{NEWER}")


def a_fifo(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / f"libcuda.so.{NEWER}")
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{NEWER}")


def no_library(folder: Path) -> None:
    put_driver(folder, NEWER).write_text("no library")


def another_processor(folder: Path) -> None:
    file = put_driver(folder, NEWER)
    with file.open("r+b") as stream:
        stream.seek(18)
        stream.write((183).to_bytes(2, "little"))  # AArch64


def another_library(folder: Path) -> None:
    put_driver(folder, NEWER, Path("/lib/x86_64-linux-gnu/libm.so.6"))


def the_shim_itself(folder: Path) -> None:
    put_driver(folder, NEWER, paths.so_path())


def no_version(folder: Path) -> None:
    put_driver(folder, NEWER).rename(folder / "libcuda.so.1")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (nothing_there, ""),
        (link_to_nothing, "No such file"),
        (a_directory, "it is not a regular file"),
        (a_fifo, "it is not a regular file"),
        (no_library, "invalid ELF header|file too short"),
        (another_processor, "cannot open shared object file|wrong ELF class|ELF file"),
        (another_library, "it has no cuInit"),
        (the_shim_itself, "it is the shim"),
        (no_version, "contains no version"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_file_that_is_no_driver_is_passed_over_with_its_reason(
    tenant, machines_driver, tmp_path, make, why
):
    make(tmp_path / "broken")
    good = put_driver(tmp_path / "good", NEWER)
    broken = str(tmp_path / "broken")
    assert drivers(tenant, LD_LIBRARY_PATH=broken)[1][-1:] == [str(machines_driver)]
    said = [line for line in tenant.log().splitlines() if "is ignored: " in line]
    assert len(said) == bool(why), tenant.log()
    if why:
        assert any(word in said[0] for word in why.split("|")), said
    # ... and the search goes on behind it.
    total, mapped = drivers(tenant, LD_LIBRARY_PATH=f"{broken}:{good.parent}")
    assert total == LIMIT
    assert str(good) in mapped
    assert str(machines_driver) not in mapped


def test_a_driver_whose_file_names_no_version_stays_in_use(make_tenant, tmp_path):
    """The simulated one: a real driver in an image must not stand in its place."""
    newer = put_driver(tmp_path / "compat", NEWER)
    assert drivers(make_tenant(LIMIT), LD_LIBRARY_PATH=str(newer.parent))[1] == [
        str(paths.sim_dir() / "libcuda.so.1")
    ]


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_link_of_any_name_to_either_driver_opens_the_shim(
    tenant, machines_driver, tmp_path, link
):
    newer = put_driver(tmp_path / "compat", NEWER)
    for number, file in enumerate((machines_driver, newer)):
        name = tmp_path / f"notthedriver{number}.so"
        getattr(name, link)(file)
        assert drivers(tenant, name, LD_LIBRARY_PATH=str(newer.parent)) == (LIMIT, [str(newer)])


@pytest.fixture
def with_cache(tmp_path):
    """Runs a command in a mount namespace with a loader's cache of these folders."""

    def words(*folders: Path, form: str = "new") -> list[str]:
        configuration, cache = tmp_path / "ld.so.conf", tmp_path / "ld.so.cache"
        configuration.write_text("".join(f"{folder}\n" for folder in folders))
        made = ["/sbin/ldconfig", "-X", "-c", form, "-f", configuration, "-C", cache]
        subprocess.run(made, check=True, capture_output=True)
        script = f'mount --bind {cache} /etc/ld.so.cache && exec "$0" "$@"'
        return ["unshare", "-m", "sh", "-c", script]

    return words


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount another cache")


@needs_root
@pytest.mark.parametrize("form", ["new", "compat"])
def test_a_newer_driver_in_the_loaders_cache_is_used(tenant, tmp_path, with_cache, form):
    """As ld.so.conf.d of an image has it, and as NVIDIA's container hook writes it."""
    newer = put_driver(tmp_path / "compat", NEWER)
    seen = drivers(tenant, before=with_cache(newer.parent, form=form), LD_LIBRARY_PATH="")
    assert seen == (LIMIT, [str(newer)])


@needs_root
def test_the_first_one_in_the_loaders_cache_counts(tenant, machines_driver, tmp_path, with_cache):
    newer = put_driver(tmp_path / "compat", NEWER)
    for folders, chosen in (
        ((newer.parent, machines_driver.parent), newer),
        ((machines_driver.parent, newer.parent), machines_driver),
    ):
        seen = drivers(tenant, before=with_cache(*folders), LD_LIBRARY_PATH="")
        assert seen == (LIMIT, [str(chosen)])


@needs_root
@pytest.mark.parametrize("cut", [0, 20, 47, 60, 200])
def test_a_damaged_cache_counts_as_missing(tenant, machines_driver, tmp_path, with_cache, cut):
    newer = put_driver(tmp_path / "compat", NEWER)
    before = with_cache(newer.parent)
    cache = tmp_path / "ld.so.cache"
    whole = cache.read_bytes()
    for damaged in (whole[:cut], whole[:cut] + b"\xff" * (len(whole) - cut)):
        cache.write_bytes(damaged)
        seen = drivers(tenant, before=before, LD_LIBRARY_PATH="")
        assert seen == (LIMIT, [str(machines_driver)])
