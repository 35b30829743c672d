"""Every symbol has one kind and one reason; a symbol of newer headers that may escape has none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen import coverage, headers
from codegen.__main__ import find_headers

REPOSITORY = Path(__file__).parents[2]
NATIVE = REPOSITORY / "shim" / "native"
INCLUDE = find_headers()
CUDA = coverage.cuda_tables(NATIVE)
NVML = coverage.nvml_tables(NATIVE)
NAMES = {"cuda": headers.cuda_names(INCLUDE), "nvml": headers.nvml_names(INCLUDE)}

# One of each family of the driver that takes memory or time, old and new, in all spellings.
TAKES_MEMORY = [
    "cuMemAllocX",
    "cuMemAlloc_v3",
    "cuMemAllocAsync_v2_ptsz",
    "cuMemCreate_v2",
    "cuMemMapRange",
    "cuMemPoolCreate_v2",
    "cuArray4DCreate",
    "cuCtxCreate_v5",
    "cuDevicePrimaryCtxRetain_v2",
    "cuIpcOpenMemHandle_v3",
    "cuModuleLoadZ",
    "cuMemImportFromFabric",
    "cuLibraryLoadFromUrl",
    "cuGraphAddMemAllocNode_v2",
    "cuTileBufferReserve",
    "cuMulticastBindMem2",
    "cuHeapFill",
    "cuTensorOpen",
    "cuCheckpointProcessRestoreTo",
]
TAKES_TIME = [
    "cuLaunchTile",
    "cuLaunchKernel_v2_ptsz",
    "cuGraphLaunchBatch",
    "cuGraphInstantiateLazily",
    "cuMemcpyTile",
    "cuMemsetD64",
    "cuMemPrefetchTo",
    "cuBatchOp",
    "cuMemDecompressAll",
    "cuStreamSubmit",
    "cuQueueEnqueue",
    "cuTaskRun",
    "cuProgramExecute",
    "cuMemReduceAdd",
    "cuMemMigrate",
    "cuCopyEngineTransfer",
    "cuWorkUpload",
    "cuStreamOpAsync",
    "cuGetProcAddress_v3",
]


def test_every_symbol_of_the_headers_has_one_kind_and_one_reason():
    for library, tables in (("cuda", CUDA), ("nvml", NVML)):
        rows, unknown = coverage.known_and_unknown(NAMES[library], tables)
        assert unknown == []
        assert [row.symbol for row in rows] == NAMES[library]
        assert {row.kind for row in rows} <= set(coverage.KINDS[library])
        assert [row.symbol for row in rows if len(row.why) < 5] == []


def test_the_coverage_page_is_what_headers_and_tables_say(tmp_path):
    """If this fails: `make gen`, and look at what changed before you commit it."""
    page = tmp_path / "coverage.md"
    command = [sys.executable, "-m", "codegen", "--native", NATIVE, "--page", page]
    subprocess.run(command, cwd=REPOSITORY / "shim", check=True)
    assert page.read_text() == (REPOSITORY / "docs" / "coverage.md").read_text()


def test_every_line_of_the_forwarded_tables_matches_a_symbol():
    assert coverage.unused(NAMES["cuda"], CUDA) == []
    assert coverage.unused(NAMES["nvml"], NVML) == []


@pytest.mark.parametrize(
    "requirement",
    [
        "nvidia-cuda-runtime-cu11==11.8.89",
        "nvidia-cuda-runtime-cu12==12.0.146",
        "nvidia-cuda-runtime-cu12==12.9.79",
    ],
)
def test_no_older_header_on_pypi_has_a_symbol_that_the_tables_do_not_know(
    pypi_headers, requirement
):
    names = headers.cuda_names(pypi_headers(requirement))
    assert len(names) > 540
    assert coverage.known_and_unknown(names, CUDA)[1] == []


@pytest.mark.parametrize("name", [*TAKES_MEMORY, *TAKES_TIME])
def test_an_invented_name_that_takes_memory_or_time_is_unknown(name):
    assert CUDA.row(name) is None


@pytest.mark.parametrize("name", ["cuMemFree_v3", "cuStreamDestroy_v3", "cuMemGetInfo_v3"])
def test_another_version_of_a_hooked_name_is_unknown_even_if_it_sounds_harmless(name):
    assert not CUDA.looks_risky(name)
    assert CUDA.row(name) is None


def test_a_harmless_name_of_a_family_that_nobody_described_is_unknown_too():
    assert CUDA.row("cuTelepathyGetMood") is None
    assert NVML.row("nvmlTelepathyGetMood") is None


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetMemoryInfo_v3", "nvmlDeviceGetAllProcesses", "nvmlSystemGetCount"]
)
def test_an_nvml_name_that_may_show_other_tenants_is_unknown(name):
    assert NVML.row(name) is None


@pytest.fixture
def newer_headers(tmp_path):
    """Headers of a future driver: two names that escape, one harmless name, one new version."""
    include = tmp_path / "include"
    include.mkdir()
    for header in [*INCLUDE.glob("cuda*.h"), INCLUDE / "nvml.h"]:
        shutil.copy(header, include)
    text = (include / "cuda.h").read_text()
    added = (
        "CUresult CUDAAPI cuTileAllocAll(size_t bytes);\n"
        "CUresult CUDAAPI cuGraphTileLaunch(CUstream stream);\n"
        "CUresult CUDAAPI cuMemFree_v3(CUdeviceptr pointer);\n"
        "CUresult CUDAAPI cuDeviceGetMood(int *mood, CUdevice device);\n"
    )
    mark = "#ifdef __cplusplus\n}\n#endif"
    assert mark in text
    before, _, after = text.rpartition(mark)
    (include / "cuda.h").write_text(before + added + mark + after)
    return include


def generate(include: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "codegen",
        "--native",
        NATIVE,
        "--include",
        include,
        "--out",
        out,
    ]
    return subprocess.run(
        command, cwd=REPOSITORY / "shim", capture_output=True, text=True, check=True
    )


def test_newer_headers_build_a_shim_without_the_names_that_may_escape(newer_headers, tmp_path):
    done = generate(newer_headers, tmp_path / "out")
    for name in ("cuTileAllocAll", "cuGraphTileLaunch", "cuMemFree_v3"):
        assert name in done.stderr
    assert "hooks.def or forwarded.def" in done.stderr
    exported = (tmp_path / "out" / "cuda_forwarders.S").read_text()
    assert "cuDeviceGetMood" in exported
    assert "cuTileAllocAll" not in exported
    assert "cuGraphTileLaunch" not in exported
    assert "cuMemFree_v3" not in exported
    known = json.loads((tmp_path / "out" / "coverage.json").read_text())
    assert known["cuda"]["cuDeviceGetMood"] == ["forwarded", "returns properties of a device"]
    assert known["headers"] == headers.versions(INCLUDE)


def test_two_families_for_one_name_stop_the_build(tmp_path):
    tables = spoiled(tmp_path, "forwarded.def", 'FAMILY("twice", cuCtxGet*)\n')
    with pytest.raises(ValueError, match="cuCtxGetId is in two families"):
        tables().row("cuCtxGetId")


def test_a_name_listed_twice_stops_the_build(tmp_path):
    with pytest.raises(ValueError, match="cuMemAllocHost is listed twice"):
        spoiled(tmp_path / "a", "forwarded.def", 'FORWARD("twice", cuMemAllocHost)\n')()
    with pytest.raises(ValueError, match="cuInit is listed twice"):
        spoiled(tmp_path / "b", "hooks.def", 'HOOK(cuInit, door, "twice")\n')()


def spoiled(folder: Path, table: str, line: str):
    """Reads the driver's tables with one additional line."""
    folder.mkdir(exist_ok=True)
    for name in ("hooks.def", "forwarded.def", "risky.def"):
        shutil.copy(NATIVE / name, folder / name)
    with (folder / table).open("a") as stream:
        stream.write(line)
    return lambda: coverage.cuda_tables(folder)
