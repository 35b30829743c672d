"""Warnings of slow lines: once for a line, with what it costs and what to do, and no noise."""

import linecache
import time
import warnings

import pytest
import torch
from tests.card.support.import_torch import run

from penstock.card import PenstockCardWarning
from penstock.card.device import costs as module
from penstock.card.device.costs import DOWNLOAD, DYNAMIC, GATHER, PLANS, Costs, Threshold

pytestmark = pytest.mark.filterwarnings("always::penstock.card.PenstockCardWarning")


@pytest.fixture(autouse=True)
def device(cards, eager_splits, monkeypatch):
    """The cards, without anything told or counted before."""
    monkeypatch.setattr(cards.planner, "costs", Costs())
    return cards


@pytest.fixture
def soon(monkeypatch):
    """Few and small things are worth a warning."""
    least = dict.fromkeys((GATHER, DOWNLOAD, DYNAMIC, PLANS), Threshold(5, 0, 0))
    monkeypatch.setattr(module, "THRESHOLDS", least)


def split(rows, columns=8):
    """A tensor that is split along its first dimension."""
    tensor = torch.randn(rows, columns).to("penstock")
    return torch.relu(tensor @ torch.randn(columns, columns).to("penstock"))


def told_by(function, times):
    """The warnings that a function leads to, as the text of their line and the message."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(times):
            function()
    return [(linecache.getline(one.filename, one.lineno).strip(), str(one.message))
            for one in found if one.category is PenstockCardWarning]  # fmt: skip


# What the warnings say.


def test_a_line_that_reads_a_number_each_step_is_named(soon):
    loss = torch.ones(4, device="penstock").sum()

    def step():
        loss.item()  # here

    ((line, text),) = told_by(step, 20)
    assert line == "loss.item()  # here"
    assert text.startswith("slow on device penstock: item(): the program waits")
    assert "(5 times in 0 s, 20B, waited for 0.0 s)" in text
    assert "read them once in many steps" in text


def test_a_line_that_gathers_is_named_with_the_operation_and_why(soon):
    own = split(70)

    def step():
        (own + 0).sort(0)  # here

    ((line, text),) = told_by(step, 20)
    assert line == "(own + 0).sort(0)  # here"
    assert "aten::sort: no rule splits it" in text
    assert f"(5 times in 0 s, {5 * 70 * 8 * 4 / 1024:.1f}Ki)" in text
    assert "each row of the batch by itself" in text


def test_a_line_whose_result_has_a_shape_that_depends_on_data_is_named(soon):
    own = split(70)

    def step():
        own.nonzero()  # here

    ((line, text),) = told_by(step, 20)
    assert line == "own.nonzero()  # here"
    assert "aten::nonzero: its result's shape depends on data" in text
    assert "torch.where" in text


def test_a_line_with_ever_new_shapes_is_named(soon):
    lengths = iter(range(100, 200))

    def step():
        torch.ones(next(lengths), device="penstock").tanh()  # here

    ((line, text),) = told_by(step, 20)
    assert line == 'torch.ones(next(lengths), device="penstock").tanh()  # here'
    assert "other shapes or whole numbers again and again" in text
    assert "planned for" in text
    assert "padding" in text


def test_a_line_with_ever_new_whole_numbers_is_named_and_floats_are_fine(soon):
    own = torch.ones(4, device="penstock")
    numbers = iter(range(100))

    def step():
        own.add(next(numbers))  # here

    ((line, text),) = told_by(step, 20)
    assert line == "own.add(next(numbers))  # here"
    assert "floats for numbers that change" in text
    assert told_by(lambda: own.add(float(next(numbers))), 20) == []


def test_a_slow_operation_of_backward_is_named_at_the_line_that_called_it(soon):
    own, weights = split(70).requires_grad_(), split(70)

    def step():
        loss = (own.cumsum(0) * weights).sum()
        loss.backward()  # here

    ((line, text),) = told_by(step, 20)
    assert line == "loss.backward()  # here"
    assert "aten::flip in backward: no rule splits it" in text


# How often.


def test_a_line_is_told_of_once_and_another_one_as_well(soon):
    loss = torch.ones(4, device="penstock").sum()

    def first():
        loss.item()  # one

    def second():
        loss.item()  # two

    assert [line for line, _ in told_by(first, 50)] == ["loss.item()  # one"]
    assert told_by(first, 50) == []
    assert [line for line, _ in told_by(second, 50)] == ["loss.item()  # two"]


def test_a_line_that_does_many_slow_things_is_told_of_once_for_each_kind(soon):
    lengths = iter(range(100, 200))

    def step():
        torch.ones(next(lengths), device="penstock").tanh().sin().cos().exp()

    assert len(told_by(step, 30)) == 1


# What is not worth a word.


def test_small_and_rare_things_are_not_told():
    own = split(70)

    def step():
        (own + 0).sort(0)
        own.nonzero()
        own.sum().item()

    assert told_by(step, 50) == []


def test_what_is_spread_over_a_long_time_is_not_told(soon, monkeypatch):
    loss = torch.ones(4, device="penstock").sum()
    monkeypatch.setattr(module, "_MINUTE_NS", 50 * 10**6)

    def step():
        loss.item()
        time.sleep(0.02)

    assert told_by(step, 20) == []


def test_an_ordinary_training_is_not_told_of():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(144, 5),
    ).to("penstock")  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        out = model(torch.randn(28, 1, 8, 8).to("penstock"))
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()

    assert told_by(step, 60) == []


def test_plans_that_are_made_once_are_not_told_of(soon):
    def step():
        for size in (3, 4, 5, 6):  # fewer than are worth a word, again and again
            torch.ones(size, device="penstock").tanh()

    assert told_by(step, 30) == []


# Filters of warnings.


def test_a_warning_that_is_made_an_error_leaves_the_device_usable(soon):
    own = split(70)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PenstockCardWarning)
        for step in range(10):
            other = own + float(step)
            try:
                other.sort(0)  # here
            except PenstockCardWarning:
                break
        else:
            raise AssertionError("nothing was raised")
        with pytest.raises(PenstockCardWarning, match="nonzero"):
            [own.nonzero() for _ in range(10)]
    torch.testing.assert_close(other.sort(0).values.cpu(), other.cpu().sort(0).values)
    torch.testing.assert_close(own.nonzero().cpu(), own.cpu().nonzero())


PROGRAM = """
import sys, torch
from penstock.card.device import costs
costs.THRESHOLDS = dict.fromkeys(costs.THRESHOLDS, costs.Threshold(3, 0, 0))
{before}
loss = torch.ones(4, device="penstock").sum()
for _ in range(9):
    loss.item()
"""
FILTER = """
import warnings
from penstock.card import PenstockCardWarning
warnings.filterwarnings("ignore", category=PenstockCardWarning)
"""


def test_a_program_prints_the_warning_once_with_its_line_and_ends_well(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(PROGRAM.format(before=""))
    variables = {"PENSTOCK_CARD": "cpu=1,cpu=1"}
    code = f"import runpy; runpy.run_path({str(file)!r})"
    found = run(code, **variables)
    assert found.status == 0
    assert found.stderr.count("PenstockCardWarning") == 1
    assert f"{file}:8: PenstockCardWarning: slow on device penstock: item()" in found.stderr
    assert "loss.item()" in found.stderr


@pytest.mark.parametrize("way", ["category", "option"])
def test_warnings_are_switched_off_by_python_s_own_filter(way):
    options = ["-W", "ignore:slow on device penstock"] if way == "option" else []
    code = PROGRAM.format(before=FILTER if way == "category" else "")
    found = run(code, *options, PENSTOCK_CARD="cpu=1,cpu=1")
    assert (found.status, found.stderr) == (0, "")
