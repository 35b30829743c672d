"""The libraries export exactly the names that the vendor's headers declare."""

from __future__ import annotations

import pytest

from codegen import emit, headers
from codegen.__main__ import find_headers
from penstock_shim import paths

INCLUDE = find_headers()
CUDA = headers.cuda_names(INCLUDE)
NVML = headers.nvml_names(INCLUDE)


@pytest.mark.parametrize(
    ("library", "prefix", "names"),
    [
        (paths.so_path(), "cu", CUDA),
        (paths.nvml_so_path(), "nvml", NVML),
        (paths.sim_dir() / "libcuda.so.1", "cu", CUDA),
        (paths.sim_dir() / "libnvidia-ml.so.1", "nvml", NVML),
    ],
    ids=["shim", "shim-nvml", "simulated-driver", "simulated-nvml"],
)
def test_a_library_exports_every_name_of_the_headers(exported, library, prefix, names):
    assert set(names) - exported(library) == set()
    vendor = {name for name in exported(library) if name.startswith(prefix)}
    assert vendor - set(names) == set()


def test_the_shim_exports_nothing_but_driver_names_its_door_and_its_mark(exported):
    others = {n for n in exported(paths.so_path()) if not n.startswith("cu")}
    assert others == {"dlopen", "dlmopen", "penstock_cuda_shim"}


def test_superseded_versions_and_per_thread_names_are_known():
    for name in ("cuMemAlloc", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2_ptds"):
        assert name in CUDA


def test_names_that_a_debugger_looks_up_in_the_program_stay_the_drivers_own():
    found = [name for name in CUDA if name.startswith("cudbg")]
    assert found == ["cudbgGetAPI", "cudbgGetAPIVersion"]


@pytest.mark.parametrize(
    ("base", "per_thread", "answers"),
    [
        ("cuMemAlloc", False, {2000: "cuMemAlloc", 3020: "cuMemAlloc_v2"}),
        ("cuLaunchKernel", True, {7000: "cuLaunchKernel_ptsz"}),
        (
            "cuStreamGetCaptureInfo",
            False,
            {
                10010: "cuStreamGetCaptureInfo",
                11030: "cuStreamGetCaptureInfo_v2",
                12030: "cuStreamGetCaptureInfo_v3",
            },
        ),
        ("cuMemcpyHtoD", True, {7000: "cuMemcpyHtoD_v2_ptds"}),
    ],
)
def test_each_requested_version_of_a_name_has_its_export(base, per_thread, answers):
    found = {
        v.version: v.symbol
        for v in headers.cuda_variants(INCLUDE, CUDA)
        if (v.base, v.per_thread) == (base, per_thread)
    }
    assert found == answers


def test_every_export_that_a_header_spells_can_be_requested():
    asked = {v.symbol for v in headers.cuda_variants(INCLUDE, CUDA)}
    unspelled = {"cuEGLApiInit", "cuMemGetAttribute", "cuMemGetAttribute_v2"}
    assert set(CUDA) - asked == unspelled | {"cudbgGetAPI", "cudbgGetAPIVersion"}


def test_a_hook_for_a_name_that_the_headers_lack_stops_the_build(tmp_path):
    with pytest.raises(ValueError, match="cuMemAllok"):
        emit.emit_forwarders(tmp_path, "cuda", CUDA, ["cuMemAllok"])
