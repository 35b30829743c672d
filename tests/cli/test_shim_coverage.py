"""`penstock shim coverage` lists driver names that a program uses and the shim only forwards."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_shim import paths

from .conftest import wait_until

ROOT = Path(__file__).parents[2]
ASK = """
import ctypes, sys
library = ctypes.CDLL("libcuda.so.1")
library.cuInit(0)
for name in sys.argv[1:]:
    function, status = ctypes.c_void_p(), ctypes.c_int(-1)
    library.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(function), 13000, ctypes.c_uint64(0), ctypes.byref(status))
print("done")
"""
NUMBA = """
from numba import cuda
import numpy as np

@cuda.jit
def double(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2

double[1, 32](cuda.to_device(np.ones(32)))
cuda.synchronize()
"""


@pytest.fixture
def coverage(penstock):
    def run(program: str, *words: str, output="json", options=(), **environment: str):
        return penstock(
            "shim", "coverage", "--simulate=h200", "-o", output, *options, "--",
            sys.executable, "-c", program, *words, env=environment,
        )  # fmt: skip

    return run


def names_of(result) -> dict[str, dict]:
    return {one["name"]: one for one in json.loads(result.stdout)["names"]}


def test_the_calls_of_a_numba_program_are_listed_with_the_reasons_why_they_may_pass(coverage):
    result = coverage(NUMBA, output="json")
    assert result.returncode == 0, result.stderr
    names = names_of(result)
    reasons = json.loads(paths.coverage_table().read_text())["cuda"]
    called = {name: one for name, one in names.items() if one["calls"]}
    assert {"cuDeviceGetAttribute", "cuDeviceGetCount"} <= set(called)
    for name, one in called.items():
        assert [one["kind"], one["why"]] == reasons[name]
        assert one["requests"] > 0
    answered = {"cuInit", "cuLaunchKernelEx", "cuMemAlloc_v2", "cuMemGetInfo_v2"}
    assert answered & set(names) == set()


def test_calls_are_counted_one_by_one_however_the_function_was_found(coverage):
    program = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
library.cuInit(0)
for _ in range(7):
    library.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))
"""
    names = names_of(coverage(program))
    assert (names["cuDriverGetVersion"]["calls"], names["cuDriverGetVersion"]["requests"]) == (7, 0)


def test_the_shims_own_calls_are_not_counted_as_the_programs(coverage):
    """CuInit makes the shim match devices to grants, through functions that are only forwarded."""
    result = coverage('import ctypes; ctypes.CDLL("libcuda.so.1").cuInit(0)')
    assert [one for one in names_of(result).values() if one["calls"]] == []


def test_a_refused_name_is_listed_first_and_makes_the_exit_code_3(coverage, penstock):
    newer = {"PENSTOCK_SIM_NEWER": "cuTileAlloc,cuTileQuery"}
    result = coverage(ASK, "cuTileQuery", "cuTileAlloc", "cuTileAlloc", **newer)
    assert result.returncode == 3
    report = json.loads(result.stdout)
    assert report["refused"] == 1
    assert [(one["name"], one["kind"], one["requests"]) for one in report["names"]][:2] == [
        ("cuTileAlloc", "refused", 2),
        ("cuTileQuery", "unknown", 1),
    ]
    assert penstock.tenants() == []


def test_the_commands_own_failure_outweighs_what_was_refused(coverage):
    program = ASK + "\nsys.exit(9)"
    assert coverage(program, "cuTileAlloc", PENSTOCK_SIM_NEWER="cuTileAlloc").returncode == 9


def test_a_policy_that_allows_unknown_names_refuses_none(coverage, tmp_path):
    policy = tmp_path / "p.yaml"
    policy.write_text(
        "apiVersion: penstock.io/v1alpha1\nkind: QuotaPolicy\nmetadata: {name: p}\n"
        "spec: {limits: {memory: 8Gi, cores: 30}, allowUnknown: true}\n"
    )
    newer = {"PENSTOCK_SIM_NEWER": "cuTileAlloc"}
    result = coverage(ASK, "cuTileAlloc", options=[f"--policy={policy}"], **newer)
    assert result.returncode == 0
    assert names_of(result)["cuTileAlloc"]["kind"] == "unknown"


def test_json_stands_alone_on_standard_output(coverage):
    result = coverage(ASK)
    json.loads(result.stdout)
    assert "done" in result.stderr


def test_the_table_follows_the_commands_output_and_says_what_cannot_be_seen(coverage):
    result = coverage(ASK, "cuTileAlloc", output="table", PENSTOCK_SIM_NEWER="cuTileAlloc")
    before, _, after = result.stdout.partition("NAME")
    assert "done" in before
    assert "cuTileAlloc" in after
    assert "refused" in after
    assert "not seen: names that a program links" in after


def test_a_refused_name_is_an_event_of_an_ordinary_run(penstock):
    program = ASK + "\nsys.stdin.readline()"
    child = penstock.start(
        "--name=t", "--", sys.executable, "-c", program, "cuTileAlloc",
        stdin=-1, env={"PENSTOCK_SIM_NEWER": "cuTileAlloc"},
    )  # fmt: skip
    assert child.stdout.readline() == "done\n"
    events = penstock.state / "tenants" / "t" / "events.jsonl"

    def refused():
        found = map(json.loads, events.read_text().splitlines())
        return [one for one in found if one["event"] == "function-refused"]

    (event,) = wait_until(refused)
    assert (event["function"], event["count"]) == ("cuTileAlloc", 1)
    assert "allowUnknown" in event["reason"]
    child.stdin.close()
    assert child.wait(30) == 0


def test_a_command_that_cannot_be_started_says_so(penstock):
    result = penstock("shim", "coverage", "--simulate=h200", "--", str(Path("/no/such/program")))
    assert result.returncode == 127
    assert "cannot run" in result.stderr
    assert penstock.tenants() == []


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_program_that_never_came_through_the_shim_is_not_called_covered(penstock, output):
    command = ["env", "LD_PRELOAD=", sys.executable, "-c", ASK]
    result = penstock("shim", "coverage", "--simulate=h200", "-o", output, "--", *command)
    assert result.returncode == 3
    if output == "json":
        assert json.loads(result.stdout)["shim_used"] is False
    else:
        assert "no process of the command used a device through the shim" in result.stdout
        assert "called nothing" not in result.stdout


def test_a_static_program_is_reported_as_running_without_the_shim(penstock, tmp_path):
    (tmp_path / "p.c").write_text("int main(void) { return 0; }")
    static = tmp_path / "static"
    subprocess.run(["gcc", "-static", tmp_path / "p.c", "-o", static], check=True)
    result = penstock("shim", "coverage", "--simulate=h200", "--", str(static))
    assert "static" in result.stderr
    assert result.returncode == 3


def test_the_readmes_line_works_without_a_gpu(penstock):
    lines = (ROOT / "README.md").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith("$ penstock shim coverage")]
    words = shlex.split(line, comments=True)[2:]
    words[words.index("python")] = sys.executable
    result = penstock(*words, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert "launches in 5 s" in result.stdout
