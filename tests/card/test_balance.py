"""Cards get work by how long each of them takes for its part of a step."""

import contextlib
import copy
import itertools
import os
import signal
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.card.support import models
from tests.card.support.sessions import session_of
from torch.nn import functional

from penstock.card.device import balance
from penstock.card.device.balance import balanced
from penstock.card.device.tensors import buffer_of
from penstock.card.layout import Shard, Split

COSTS = st.tuples(st.floats(0.05, 1), st.floats(0, 0.5))  # for all rows, and whatever the share is


def times(speeds, costs):
    total = sum(speeds)
    return [int(1e9 * (whole + each * speed / total))
            for speed, (each, whole) in zip(speeds, costs, strict=True)]  # fmt: skip


@given(st.lists(COSTS, min_size=2, max_size=5))
def test_repeated_changes_come_to_rest_and_only_shorten_the_step(costs):
    speeds, longest = (1.0,) * len(costs), []
    for _ in range(200):
        worked = times(speeds, costs)
        longest.append(max(worked))
        better = balanced(speeds, worked)
        if better is None:
            break
        speeds = better
        assert max(speeds) == 1
        assert min(speeds) >= balance.LEAST_SPEED
    assert longest[-1] <= longest[0] * 1.001
    is_at_rest = max(worked) <= (1 + balance.LEAST_GAIN) * sum(worked) / len(worked)
    # A card whose time hardly depends on its share ends with the least that there is.
    assert is_at_rest or min(speeds) < 0.01


def test_a_card_that_takes_twice_as_long_gets_half():
    assert balanced((1.0, 1.0), [200, 100]) == (0.5, 1.0)
    assert balanced((0.5, 1.0), [100, 100]) is None
    assert balanced((0.5, 1.0), [0, 100]) is None


@contextlib.contextmanager
def slowed(pid):
    """A process that runs for a third of the time."""
    is_over = threading.Event()

    def run():
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def training(device, steps_of):
    """Losses of a training on data that stays on the device; `steps_of` says when it ends."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)
    ).double().to(device)  # fmt: skip
    given = torch.randn(192, 256, dtype=torch.float64).to(device)
    target = (torch.arange(192) % 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in steps_of():
        loss = functional.cross_entropy(model(given), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_card_that_becomes_slow_gets_less_and_the_result_is_the_same(monkeypatch):
    monkeypatch.setattr(balance, "FIRST_PERIOD_S", 0.2)
    with session_of("cpu,cpu,cpu") as session:
        slow = session.cards.cards[1]

        def until_changed():
            until_s = time.monotonic() + 30
            while time.monotonic() < until_s:
                yield
                others = min(session.speeds[0], session.speeds[2])
                if session.speeds[1] < 0.6 * others:
                    yield from range(3)
                    return
            pytest.fail(f"the speeds are still {session.speeds}")

        with slowed(slow.pid):
            losses = training("penstock", until_changed)
        assert session.statistics()
    expected = training("cpu", lambda: range(len(losses)))
    assert losses == pytest.approx(expected, rel=1e-9)


def test_tensors_that_are_split_are_split_by_the_new_speeds():
    with session_of("cpu=1,cpu=1,cpu=1") as session:
        batch, weight, scale = torch.ones(30, 640), torch.eye(640), torch.randn(640)
        moved = batch.to("penstock") @ weight.to("penstock")  # a product is split
        scaled = moved * scale.to("penstock")
        before = buffer_of(scaled).layout
        assert isinstance(before, Split)
        session.rebalance((1.0, 0.25, 0.25))
        again = scaled + moved
        after = buffer_of(again).layout
        assert isinstance(after, Split)
        assert after.bounds == (0, 20 * 2560, 25 * 2560, 30 * 2560) != before.bounds
        expected = batch * scale
        assert scaled.cpu().equal(expected)
        assert again.cpu().equal(expected + batch)


def test_shards_are_cut_by_the_new_speeds_and_go_on():
    with session_of("cpu=1,cpu=1,cpu=1") as session:
        session.sharding.set_mode("on")
        torch.manual_seed(0)
        layer = torch.nn.Linear(256, 300, bias=False)
        expected, data = layer.weight.detach().clone(), torch.randn(8, 256)
        layer.to("penstock")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        for speeds in ((1.0, 1.0, 1.0), (1.0, 0.5, 0.5), (0.5, 1.0, 0.5)):
            session.rebalance(speeds)
            optimizer.zero_grad()
            layer(data.to("penstock")).sum().backward()
            optimizer.step()
            layout = buffer_of(layer.weight).layout
            assert isinstance(layout, Shard)
            shares = [high - low for low, high in itertools.pairwise(layout.bounds)]
            assert shares == [int(1024 * 300 * one / sum(speeds)) for one in speeds]
            momentum = optimizer.state[layer.weight]["momentum_buffer"]
            assert buffer_of(momentum).layout.bounds == layout.bounds
        gradient, velocity = data.sum(0).expand_as(expected), 0
        for _ in range(3):
            velocity = velocity * 0.9 + gradient
            expected = expected - 0.1 * velocity
        torch.testing.assert_close(layer.weight.detach().cpu(), expected)


def test_speeds_that_were_given_stay_as_do_those_of_deterministic_programs():
    for text, is_deterministic in (("cpu=1,cpu=3", False), ("cpu,cpu", True)):
        with session_of(text) as session:
            torch.use_deterministic_algorithms(is_deterministic)
            try:
                session.balance._asked_s = -1e9
                session.balance.step()
            finally:
                torch.use_deterministic_algorithms(False)
            assert not session.balance._replies


def test_a_training_whose_shares_change_with_each_step_ends_with_the_cpus_parameters():
    speeds = itertools.cycle([(1.0, 1.0, 1.0), (1.0, 0.2, 0.5), (0.1, 0.6, 1.0)])
    images = torch.randn(24, 3, 32, 32, dtype=torch.float64)
    classes = torch.arange(24) % 10
    torch.manual_seed(3)
    own = models.resnet18(8).double()
    with session_of("cpu=1,cpu=1,cpu=1") as session:
        moved = copy.deepcopy(own).to("penstock")
        optimizer = torch.optim.SGD(moved.parameters(), lr=0.05, momentum=0.9)
        given, target = images.to("penstock"), classes.to("penstock")
        losses = []
        for _ in range(7):
            session.rebalance(next(speeds))
            losses.append(one_step(moved, optimizer, given, target))
        moved = moved.cpu()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.05, momentum=0.9)
    expected = [one_step(own, optimizer, images, classes) for _ in range(7)]
    assert losses == pytest.approx(expected, rel=1e-9)
    for one, wanted in zip(moved.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-6, atol=1e-9)


def one_step(model, optimizer, given, target):
    loss = functional.cross_entropy(model(given), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
