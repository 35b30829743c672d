"""A program of ever new shapes: what the program and its cards know of them stays bounded."""

import gc

import pytest
import torch
from tests.card.support.sessions import session_of
from torch import nn

from penstock.card.device import own_operations, session
from penstock.card.device.known import Known
from penstock.card.layout import placement
from penstock.card.worker.store import MOST_VIEWS, Shape, Store

MOST = 64


@pytest.fixture
def few(monkeypatch):
    """The cards of a program that keeps few plans."""
    for module, name in [
        (session, "MOST_PLANS"), (session, "MOST_DYNAMIC"), (own_operations, "MOST_OPERATIONS"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, MOST)
    with session_of("cpu=1,cpu=2") as one:
        yield one


def known_by_cards(cards):
    cards.synchronize()
    return [one.operations for one in cards.statistics()]


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))


def trained(network, lengths, device):
    """Losses of a model on batches of these lengths."""
    drawn = torch.randn(max(lengths), 32, generator=torch.Generator().manual_seed(5))
    losses = []
    for length in lengths:
        given = drawn[:length].to(device)
        loss = (network(given).flip(0) - given).square().mean()
        loss.backward()
        losses.append(loss)
    return [one.item() for one in losses], [one.grad.cpu() for one in network.parameters()]


def test_ever_new_shapes_are_forgotten_on_both_sides_and_the_results_are_right(few):
    lengths = [*range(40, 100), 41, 99, 40]
    found, gradients = trained(model().to("penstock"), lengths, "penstock")
    expected, expected_gradients = trained(model(), lengths, "cpu")
    assert found == pytest.approx(expected, rel=1e-4)
    for one, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-4)
    assert len(few.plans) <= MOST
    for count in known_by_cards(few):
        assert MOST // 2 < count <= 3 * MOST  # plans, data-dependent ones, Penstock's own


def test_ever_new_exchanges_and_results_of_unknown_shapes_are_forgotten_too(few):
    rows, square = torch.randn(160, 64), torch.randn(64, 64)
    moved, factor = rows.to("penstock"), square.to("penstock")
    for length in range(10, 160):
        split = torch.relu(moved[:length] @ factor)
        expected = torch.relu(rows[:length] @ square)
        torch.testing.assert_close(split.flip(0).cpu(), expected.flip(0), rtol=1e-4, atol=1e-4)
        assert torch.equal((split > 1e-3).nonzero().cpu(), (split.cpu() > 1e-3).nonzero())
    assert MOST // 2 <= len(few.dynamic) <= MOST
    assert MOST // 2 <= len(few.reductions._operations._known) <= MOST
    assert max(known_by_cards(few)) <= 3 * MOST


def test_a_session_that_forgets_its_plans_lets_the_cards_forget_them(few):
    trained(model().to("penstock"), [40], "penstock")
    before = known_by_cards(few)
    few.set_speeds(few.speeds)
    torch.ones(8, device="penstock").sum().item()
    assert max(known_by_cards(few)) < min(before) // 2


def test_a_buffer_that_is_cut_in_ever_new_ways_keeps_few_views():
    store = Store(torch.device("cpu"))
    store.put(1, table := torch.arange(9000.0), Shape(torch.float32, (9000,), (1,), 0))
    for first in range(4 * MOST_VIEWS):
        shape = Shape(torch.float32, (100,), (2,), first)
        assert torch.equal(store.view(1, shape), table[first : first + 199 : 2])
        assert store.view(1, shape) is store.view(1, shape)
        assert len(store._views[1]) <= MOST_VIEWS


# What is kept, and what is not.


def test_what_is_used_again_is_kept_and_the_rest_forgotten_in_turn():
    gone = []
    known = Known(8, gone.extend)
    for number in range(1, 200):
        known.add(number, number)
        for kept in (1, 2):
            assert known.find(kept) == (kept if kept <= number else None)
        assert len(known) <= 8
    assert gone == sorted(set(gone))
    assert set(gone).isdisjoint({1, 2, 199, 198, 197})
    assert len(gone) + len(known) == 199
    known.clear()
    assert len(known) == 0
    assert sorted(gone) == list(range(1, 200))
    assert known.find(1) is None


def test_a_layout_is_one_object_while_it_is_used_and_gone_afterwards():
    gc.collect()
    before = len(placement._known)
    held = placement.split_at((0, 12, 16))
    for end in range(20, 70_000):
        placement.split_at((0, 4, end))
    assert placement.split_at((0, 12, 16)) is held
    sums = placement.partial_of(held)
    assert placement.partial_of(held) is sums
    assert placement.shard_at((0, 12, 16)) is not held
    gc.collect()
    assert len(placement._known) <= before + 2
