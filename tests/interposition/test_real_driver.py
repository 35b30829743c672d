"""Names and variants agree with a real driver library."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_shim import paths

NOT_SUPPORTED = "801"
HOOKS = Path(__file__).parents[2] / "shim" / "native" / "hooks.def"


def hooked_names() -> set[str]:
    """Symbols that do more than jump: they may look at their arguments first."""
    return set(re.findall(r"^HOOK\((\w+),", HOOKS.read_text(), re.MULTILINE))


def exported_functions(library: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    return {name for name in names if re.match(r"cu[A-Z]", name)}


@pytest.fixture(scope="session")
def known_names(real_libcuda) -> list[str]:
    """Every name of shim and driver as programs request it: without version and stream suffix."""
    names = exported_functions(real_libcuda) | exported_functions(paths.so_path())
    return sorted({re.sub(r"(_v\d)?(_ptsz|_ptds)?$", "", name) for name in names})


@pytest.fixture(scope="session")
def driver_folder(real_libcuda, tmp_path_factory) -> Path:
    """The library under its name for the shim, and under one that no hook knows."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "libcuda.so.1").symlink_to(real_libcuda)
    shutil.copy(real_libcuda, folder / "counterpart.so")
    return folder


def test_every_name_version_and_flag_gets_the_variant_that_the_driver_gives(
    compile_c, preloaded, driver_folder, known_names
):
    program = compile_c("mapping.c", "-ldl")
    # `counterpart.so` and the driver below the shim are one file, so one library.
    (driver_folder / "libcuda.so.1").unlink()
    (driver_folder / "libcuda.so.1").hardlink_to(driver_folder / "counterpart.so")
    done = subprocess.run(
        [program, driver_folder / "counterpart.so"],
        input="\n".join(known_names),
        env=preloaded(LD_LIBRARY_PATH=str(driver_folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    *differences, last = done.stdout.splitlines() or [done.stderr]
    assert differences == []
    compared, functions = map(int, re.findall(r"\d+", last))
    assert compared > 100_000
    assert functions > 20_000


def test_a_name_that_the_driver_lacks_answers_not_supported_when_it_is_linked(
    make_tenant, real_libcuda
):
    """Newer programs find such names by dlsym or linking: the shim has them, the driver has not."""
    lacking = sorted(exported_functions(paths.so_path()) - exported_functions(real_libcuda))
    program = (
        "import ctypes, sys; shim = ctypes.CDLL('libcuda.so.1')\n"
        "for name in sys.argv[1:]: print(name, getattr(shim, name)(0, 0, 0, 0, 0, 0))"
    )
    unhooked = [name for name in lacking if name not in hooked_names()]
    assert len(unhooked) > 50
    done = subprocess.run(
        [sys.executable, "-c", program, *unhooked],
        env=make_tenant(driver=real_libcuda).environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert answers == dict.fromkeys(unhooked, NOT_SUPPORTED)


def test_the_shim_exports_all_that_the_driver_exports_but_the_debugger_names(real_libcuda):
    missing = exported_functions(real_libcuda) - exported_functions(paths.so_path())
    assert missing == set()


def test_a_real_driver_without_a_device_answers_through_the_shim(
    compile_c, preloaded, driver_folder
):
    done = subprocess.run(
        [compile_c("version.c", "-ldl")],
        env=preloaded(LD_LIBRARY_PATH=str(driver_folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.fullmatch(r"version \d{5}, init 802\n", done.stdout), done.stderr
