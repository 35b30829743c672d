"""`penstock pool estimate`, with files of users that are right and wrong."""

import json
import subprocess
import sys

import pytest
import torch
from tests.estimate_torch.exported import export
from torch import nn

import penstock
from penstock.estimation.user_code import load_function

PROGRAM = """\
import sys
import torch
from torch import nn

print("this is printed as the file is loaded")
LAYERS = nn.Linear(16, 16)


def make_model():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))


def sample():
    return {"input": torch.ones(8, 16)}


def loss(output):
    targets = torch.zeros(len(output), dtype=torch.long)
    return nn.functional.cross_entropy(output, targets)


class Distances(nn.Module):
    def forward(self, x):
        return torch.cdist(x, x)


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        y = self.layer(x)
        return y @ torch.ones(3, 4)


def ends():
    sys.exit(3)


def raises():
    return {}["no such key"]


def no_model():
    return 3


def numbers():
    model = make_model()
    model[0].weight.numpy()
    return model
"""


def line(text):
    """A line of the program, as an error names it."""
    return f"train.py:{PROGRAM[: PROGRAM.index(text)].count(chr(10)) + 1}"


REFUSED = {  # function: arguments, words in the error
    "Reads": (["--input", "8x16"], ["with 8x16", line("return y @"), "RuntimeError"]),
    "make_model": (["--input", "8x17"], ["with 8x17"]),
    "ends": (["--input", "8x16"], [line("sys.exit(3)"), "ends the program (3)"]),
    "raises": (["--input", "8x16"], [line("no such key"), "KeyError"]),
    "no_model": (["--input", "8x16"], ["torch.nn.Module", "int"]),
    "numbers": (["--input", "8x16"], [line(".numpy()"), "tensors have no data"]),
    "make_modle": (["--input", "8x16"], ["did you mean 'make_model'"]),
    "Distances": (["--input", "8x16"], ["--forward-only"]),
}


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments):
    command = [sys.executable, "-m", "penstock", "pool", "estimate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_in_the_users_file_names_its_line(program, name):
    arguments, words = REFUSED[name]
    sample = tuple(map(int, arguments[1].split("x")))
    with pytest.raises(penstock.PenstockError) as caught:
        penstock.estimate(load_function(f"{program}:{name}"), lambda: torch.empty(sample))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("body", ["import sys; sys.exit(1)", "1 / 0", "def f(:", "import no_such"])
def test_a_file_that_cannot_be_loaded_is_an_error(tmp_path, body):
    path = tmp_path / "broken.py"
    path.write_text(f"{body}\n")
    with pytest.raises(penstock.PenstockError, match=r"loading .*broken\.py failed"):
        load_function(f"{path}:make_model")


def test_a_name_of_a_library_may_be_a_files_name(tmp_path):
    path = tmp_path / "json.py"
    path.write_text("def make_model(): return None\n")
    load_function(f"{path}:make_model")
    assert sys.modules["json"] is json


def test_the_command_prints_the_estimate_and_last_the_claim(program):
    done = run(
        f"{program}:make_model", "--sample", f"{program}:sample", "--loss", f"{program}:loss",
        "--throughput", "8000/s", "--efficiency", "0.5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("penstock run --tflops 1 --memory ")
    assert "efficiency: 0.5 (given)" in lines
    assert "this is printed" in done.stderr
    assert "this is printed" not in done.stdout


def test_the_data_of_the_command_are_those_of_the_library(program, tmp_path):
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
    done = run(f"{program}:make_model", "--input", "8x16", "--step-time", "1ms", "-o", "json")
    expected = penstock.estimate(model, torch.ones(8, 16), step_time="1ms").data()
    assert json.loads(done.stdout) == {**expected, "model": f"{program}:make_model"}

    path = export(lambda: model, lambda: torch.ones(8, 16), tmp_path / "m.onnx", {0: "N"})
    done = run(path, "--dim", "N=8", "-o", "json")
    assert json.loads(done.stdout)["flops"] == expected["flops"]


def test_strict_fails_where_an_operation_is_not_known(program):
    done = run(f"{program}:Distances", "--input", "8x16", "--forward-only", "--strict")
    assert done.returncode == 1
    assert "aten._cdist_forward are not known" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["train.py"], "name a function"),
        (["train.py:make_model", "--dim", "N=3"], "--dim"),
        (["model.onnx", "--input", "8x16"], "--input cannot be given"),
        (["none.onnx"], "no such file"),
        (["none.py:f", "--input", "8"], "no such file"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, word):
    done = run(*arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
