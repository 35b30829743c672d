"""The environment of these tests: build/torch, or one of `make test-torch-versions`."""

import re
from importlib.metadata import requires

import torch
from packaging.requirements import Requirement
from tests.card.support.import_torch import run

from penstock.card.names import END_TORCH, FIRST_TORCH


def range_of_the_extra():
    (wanted,) = [
        one
        for one in map(Requirement, requires("penstock") or ())
        if one.name == "torch" and one.marker and one.marker.evaluate({"extra": "torch"})
    ]
    return wanted.specifier


def test_the_torch_in_use_is_in_the_range_of_the_extra():
    assert torch.__version__ in range_of_the_extra()


def test_the_range_of_the_extra_is_the_one_outside_of_which_programs_are_warned():
    first, end = (".".join(map(str, one)) for one in (FIRST_TORCH, END_TORCH))
    assert {str(one) for one in range_of_the_extra()} == {f">={first}", f"<{end}"}


def test_the_command_line_and_the_library_do_not_import_torch_though_it_is_there():
    code = """
import sys
from penstock.cli import main
sys.argv = ["penstock", "run", "--help"]
try:
    main()
except SystemExit as end:
    print("status", end.code)
import penstock
penstock.acquire
print("torch" in sys.modules)
"""
    *_, status, has_torch = run(code).lines
    assert re.match(r"status (0|None)$", status)
    assert has_torch == "False"
