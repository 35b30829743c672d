"""`penstock bench openb`: its output, and what it says to a missing or damaged trace."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.bench.openb_trace import write_trace

from penstock.bench.openb.trace import LISTS, NODES, PODS, read_nodes, read_pods
from penstock.model import PenstockError

WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
from penstock.cli import main
main()
"""


def command(*arguments: str, program: tuple[str, ...] = ("-m", "penstock")):
    return subprocess.run(
        [sys.executable, *program, "bench", "openb", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_results_are_a_table_and_json_with_every_run(tmp_path):
    options = ("--trace", str(write_trace(tmp_path)), "--seeds=1-2")
    result = command(*options, "--lists=default,gpuspec10", "--policies=fgd,usable", "-o", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(row["list"], row["policy"]) for row in found["summary"]] == [
        ("default", "fgd"), ("default", "usable"), ("gpuspec10", "fgd"), ("gpuspec10", "usable"),
    ]  # fmt: skip
    assert len(found["runs"]) == 8
    assert found["machine"]["cores"] >= 1
    table = command(*options, "--lists=default", "--policies=fgd")
    assert table.returncode == 0, table.stderr
    assert "95.39" in table.stdout
    assert "USENIX ATC 2023" in table.stdout


def test_all_lists_of_the_trace_are_read(tmp_path):
    write_trace(tmp_path)
    assert len(read_nodes(tmp_path)) == 20
    assert {len(read_pods(tmp_path, name)) for name in LISTS} == {120}
    assert any(pod.models == ("G2", "T4") for pod in read_pods(tmp_path, "gpuspec10"))


def test_a_list_without_models_is_read(tmp_path):
    (tmp_path / PODS.format("multigpu20")).write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,64,2,1000\n"
    )
    assert read_pods(tmp_path, "multigpu20")[0].models == ()


def test_a_missing_trace_is_named_with_what_to_pass(tmp_path):
    result = command(f"--trace={tmp_path}")
    assert result.returncode == 2
    assert f"cannot read {tmp_path / NODES}: No such file or directory" in result.stderr
    assert "--trace is the folder" in result.stderr


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("p,1000,64,1", "line 3: column 'gpu_milli' is missing or empty"),
        ("p,lots,64,1,500", "line 3: column 'cpu_milli' is 'lots', which is not a whole number"),
        ("p,-5,64,1,500", "line 3: column 'cpu_milli' is '-5', which is not a whole number"),
        ("p,1000,64,9,1000", "line 3: column 'num_gpu' is 9, and at most 8 is possible"),
        ("p,1000,64,1,1001", "line 3: column 'gpu_milli' is 1001, and at most 1000 is possible"),
        ("p,1000,64,2,500", "line 3: 2 GPUs of gpu_milli 500; several GPUs must be whole"),
        ("p,1000,64,1,0", "line 3: gpu_milli is 0 and num_gpu is not"),
        ("p,1000,64,1,\xff\0", "column 'gpu_milli'"),
    ],
)
def test_a_damaged_line_is_named_with_its_file(tmp_path, row, why):
    file = tmp_path / PODS.format("default")
    file.write_text(f"name,cpu_milli,memory_mib,num_gpu,gpu_milli\nq,1000,64,1,500\n{row}\n")
    with pytest.raises(PenstockError) as caught:
        read_pods(tmp_path, "default")
    assert caught.value.what == f"{file} is damaged"
    assert why in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("content", [b"", b"sn,cpu_milli\n", b"\xff\xfe\0\x9f\n\x80\x81\n"])
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    (tmp_path / NODES).write_bytes(content)
    with pytest.raises(PenstockError, match="is damaged"):
        read_nodes(tmp_path)


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("--lists=defualt", "there is no 'defualt'"),
        ("--policies=fgd,best", "there is no 'best'"),
        ("--seeds=51-42", "for example --seeds 42-51"),
        ("--seeds=one", "for example --seeds 42-51"),
        ("--seeds=1-99999", "at most 1000"),
    ],
)
def test_an_option_with_an_unknown_value_is_refused(tmp_path, option, word):
    result = command(f"--trace={tmp_path}", option)
    assert result.returncode == 2
    assert word in result.stderr


def test_without_numpy_the_error_says_what_to_install(tmp_path):
    result = command(f"--trace={tmp_path}", program=("-c", WITHOUT_NUMPY))
    assert result.returncode == 2
    assert "needs NumPy; install it: pip install 'penstock[bench]'" in result.stderr
