"""The shim's NVML over a real library without a GPU: Debian's `libnvidia-ml1`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.interposition.support import debian_packages

from penstock_shim import pages, paths

DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 9, 13
CACHE = Path(__file__).parents[2] / "build" / "real-nvml"
ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]: print(getattr(library, name)(0, 0, 0, 0))
"""


@pytest.fixture(scope="session")
def real_nvml() -> Path:
    try:
        return debian_packages.find(CACHE, "libnvidia-ml1", "non-free", "libnvidia-ml.so.1")
    except debian_packages.NotToBeHadError as why:
        pytest.skip(f"no real NVML to compare with: {why}")


def exported(library: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].partition("@")[0] for line in listing.splitlines()}
    return {name for name in names if name.startswith("nvml")}


@pytest.fixture
def tenant(box, real_nvml):
    """A tenant whose NVML below is the real one."""
    folder = box.tenant("real", (0, 1 << 30))
    (folder / "quota").unlink()
    limit = pages.DeviceLimit(uuid=box.devices[0].uuid, memory_bytes=1 << 30)
    pages.QuotaWriter.create(
        folder / "quota", pages.Limits(devices=(limit,)), tenant="real", nvml_path=str(real_nvml)
    ).close()
    return folder


def answers(box, tenant, *names: str) -> list[int]:
    printed = box.tool("python", "-c", ASK, "libnvidia-ml.so.1", *names, tenant=tenant)
    return list(map(int, printed.split()))


def test_the_shim_exports_all_that_a_real_nvml_exports(real_nvml):
    assert len(exported(real_nvml)) > 300
    assert exported(real_nvml) - exported(paths.nvml_so_path()) == set()


def test_a_real_nvml_answers_through_the_shim(box, tenant, real_nvml):
    names = ["nvmlInit_v2", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2"]
    bare = subprocess.run(
        [sys.executable, "-c", ASK, real_nvml, *names], capture_output=True, text=True, check=True
    ).stdout
    assert answers(box, tenant, *names) == list(map(int, bare.split()))
    assert answers(box, tenant, "nvmlInit_v2") == [DRIVER_NOT_LOADED]


def test_a_function_that_the_real_nvml_lacks_is_not_found(box, tenant, real_nvml):
    hooks = (Path(__file__).parents[2] / "shim" / "native" / "nvml" / "hooks.def").read_text()
    lacking = sorted(exported(paths.nvml_so_path()) - exported(real_nvml))
    lacking = [name for name in lacking if f"HOOK({name}," not in hooks]
    assert len(lacking) > 20
    assert set(answers(box, tenant, *lacking)) == {FUNCTION_NOT_FOUND}
