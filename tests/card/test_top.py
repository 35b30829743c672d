"""What programs publish of their cards: figures of real work, costs with their lines, ends."""

import json
import linecache
import os
import shutil
import signal
import time

import pytest
import torch
from tests.card.support.sessions import session_of
from tests.card.support.watched import ITEM, SORT, Watched, figures_when

from penstock.card import PenstockCardWarning, published, runtime_folder
from penstock.card.device.costs import DOWNLOAD, DYNAMIC, GATHER, Costs
from penstock.card.device.publisher import Publisher


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A program that trains, and the variable that says where it publishes."""
    folder = tmp_path_factory.mktemp("watched") / "runtime"
    with pytest.MonkeyPatch.context() as patch, Watched(folder) as program:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield program


@pytest.fixture
def costs(cards, eager_splits, monkeypatch):
    """What the test's lines cost: a function that gives it by operation and line, for a kind."""
    # Their number is bounded, and tests before may have had so many.
    monkeypatch.setattr(cards.planner, "costs", Costs())

    def of(what):
        return {
            (one.operation, one.line.source.number): one
            for one in cards.planner.costs.all()
            if one.line.what == what and one.line.source.file == __file__
        }

    return of


# A real program.


def test_the_cards_of_a_running_program_are_shown(watched):
    found = figures_when(lambda one: one.steps > 5 and one.steps_per_s > 0, watched.pid)
    assert [round(one.share, 3) for one in found.cards] == [0.143, 0.286, 0.571]
    assert sum(one.work for one in found.cards) == pytest.approx(1)
    for card in found.cards:
        parts = card.busy_percent + card.cards_percent + card.program_percent
        assert parts == pytest.approx(100)
        assert min(card.busy_s, card.cards_s, card.uploaded_bytes, card.gathers, card.sums) > 0
        assert 0 < card.used_bytes <= card.peak_bytes < card.total_bytes
        assert "cpu of node" in card.name
    # The first card has the least rows, so it gets most from the others when they gather.
    assert found.cards[0].gathered_bytes > found.cards[2].gathered_bytes
    assert found.waited_s > 0


def test_it_says_which_line_gathered_and_why(watched):
    found = figures_when(lambda one: one.steps > 5, watched.pid)
    by_line = {(one.what, one.line): one for one in found.costs}
    sort = by_line["gather", f"{watched.file}:{SORT}"]
    assert sort.operation == "aten::sort"
    assert "no rule splits it" in sort.reason
    assert abs(sort.count - found.steps) <= 2
    assert sort.size_bytes == sort.count * 896 * 10 * 4
    item = by_line["download", f"{watched.file}:{ITEM}"]
    assert item.operation == "item()"
    assert item.size_bytes == item.count * 4
    assert item.waited_s > 0


def test_the_command_shows_the_program_and_its_lines(watched):
    figures_when(lambda one: one.steps > 5, watched.pid)
    shown = watched.top("--once", str(watched.pid))
    assert (shown.returncode, shown.stderr) == (0, "")
    for word in ("train.py", "57 %", f"train.py:{SORT}", "aten::sort", "item()"):
        assert word in shown.stdout
    (found,) = json.loads(watched.top("--json", str(watched.pid)).stdout)
    assert found["pid"] == watched.pid


def test_a_card_that_is_lost_is_named_as_long_as_the_program_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    with session_of("cpu=1,cpu=1") as session:
        Publisher(session).start()
        figures_when(lambda one: one.cards, os.getpid())
        os.kill(session.cards.cards[1].pid, signal.SIGKILL)
        told = figures_when(lambda one: one.problem, os.getpid())
    assert "card 1" in told.problem
    assert "killed by signal 9" in told.problem


def test_a_program_that_ends_leaves_no_file(tmp_path, monkeypatch):
    with Watched(tmp_path / "runtime", steps=3) as program:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(program.folder))
        assert program.wait_end() == ""
        assert list((program.folder / "penstock/card").iterdir()) == []


def test_a_program_that_is_killed_is_shown_no_more(tmp_path, monkeypatch):
    with Watched(tmp_path / "runtime") as program:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(program.folder))
        figures_when(lambda one: one.steps, program.pid)
        program.process.kill()
        program.process.wait()
        assert program.top(str(program.pid)).returncode == 2
        assert list((program.folder / "penstock/card").iterdir()) == []


def test_a_program_without_a_folder_to_trust_is_warned_and_works(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(runtime_folder, "USERS", tmp_path / "users")
    monkeypatch.setattr(runtime_folder, "SHARED", tmp_path)
    (tmp_path / f"penstock-card-{os.geteuid()}").symlink_to("/")
    with session_of("cpu=1,cpu=1") as session:
        with pytest.warns(PenstockCardWarning, match="will not show this program.*no folder"):
            Publisher(session).start()
        assert torch.ones(8, device="penstock").sum().item() == 8


def test_a_program_whose_folder_is_removed_is_warned_and_works(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    with session_of("cpu=1,cpu=1") as session:
        publisher = Publisher(session)
        publisher.start()
        folder = tmp_path / "penstock/card"
        while not list(folder.glob("*.json")):
            time.sleep(0.02)
        shutil.rmtree(folder)
        with pytest.warns(PenstockCardWarning, match="shows this program no more"):
            publisher._thread.join(20)
        assert torch.ones(8, device="penstock").sum().item() == 8


# Costs.


def split(*size):
    """A tensor that is split along its first dimension."""
    tensor = torch.randn(*size).to("penstock")
    return torch.relu(tensor @ torch.randn(size[-1], size[-1]).to("penstock"))


def test_an_operation_without_a_rule_gathers_at_its_line_each_time(cards, costs):
    own = split(70, 8)
    for _ in range(3):
        own.sort(0)
        own = split(70, 8)
    (((operation, _), found),) = costs(GATHER).items()
    assert operation == "aten::sort"
    assert (found.count, found.size_bytes) == (3, 3 * 70 * 8 * 4)
    assert "no rule splits it" in found.reason


def test_arguments_that_are_split_otherwise_are_named(cards, costs):
    split(70, 8) + split(8, 70).t()
    ((operation, _),) = costs(GATHER)
    (found,) = costs(GATHER).values()
    assert operation == "aten::add"
    assert "argument other is split along dim 1 and needed along dim 0" in found.reason


def test_what_is_split_along_all_the_way_costs_nothing(cards, costs):
    before = costs(GATHER).keys()
    own = split(70, 8)
    (own * 2 + 1).relu().sum(1)
    assert costs(GATHER).keys() == before


def test_a_result_whose_shape_depends_on_data_is_counted(cards, costs):
    own = split(70, 8)
    own.nonzero()
    ((operation, _),) = costs(DYNAMIC)
    assert operation == "aten::nonzero"
    (found,) = costs(DYNAMIC).values()
    assert (found.count, found.size_bytes) == (1, 70 * 8 * 4)
    assert found.waited_ns > 0


def test_downloads_are_counted_at_their_lines(cards, costs):
    own = torch.ones(4, 4, device="penstock")
    own.cpu()
    own.sum().item()
    found = costs(DOWNLOAD)
    assert sorted((name, one.size_bytes) for (name, _), one in found.items()) == [
        ("cpu()", 64), ("item()", 4),
    ]  # fmt: skip


def test_gathers_of_backward_are_counted_at_the_line_that_called_it(cards, costs):
    own, weights = split(70, 8).requires_grad_(), split(70, 8)
    loss = (own.cumsum(0) * weights).sum()
    loss.backward()  # here
    found = [one for one in costs(GATHER).values() if one.line.source.is_backward]
    assert {one.operation for one in found} == {"aten::flip"}
    for one in found:
        assert linecache.getline(__file__, one.line.source.number).strip() == (
            "loss.backward()  # here"
        )


def test_the_number_of_costs_is_bounded(cards):
    from penstock.card.device import costs as module

    costs = module.Costs()
    for i in range(module._MOST + 50):
        costs.cost(GATHER, "aten::sort", f"reason {i}").add(1)
    assert len(costs.all()) == module._MOST + 1
    (others,) = [one for one in costs.all() if one.operation == "others"]
    assert others.count == 50


def test_figures_are_published_at_little_cost(cards, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    publisher = Publisher(cards)
    publisher._folder = runtime_folder.open_own()
    try:
        began_s = time.thread_time()
        for _ in range(10):
            publisher._ask()
            published.write(publisher._folder, publisher._program(""))
        assert time.thread_time() - began_s < 10 * 0.05  # of each second
    finally:
        os.close(publisher._folder)
