"""What is seen of backward passes: the loss as the program has it, and batches' rows or nothing."""

import math
import time

import pytest
import torch
from torch import nn

from penstock.card.device import passes as module
from penstock.card.device.passes import _in_rows

WITHIN_S = 20


@pytest.fixture
def passes(cards, eager_splits, monkeypatch):
    """What is seen from now on; each pass may be asked for its loss."""
    monkeypatch.setattr(module, "LOSS_PERIOD_S", 0.0)
    own = module.Passes(cards)
    monkeypatch.setattr(cards, "passes", own)
    return own


def loss_of(passes):
    end_s = time.monotonic() + WITHIN_S
    while passes._replies:
        passes.read_loss()
        assert time.monotonic() < end_s
    return passes.loss


def model():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("penstock")


def batch(rows, width=16):
    return torch.randn(rows, width).to("penstock"), torch.randint(0, 4, (rows,)).to("penstock")


def loss_on(own, inputs, targets):
    return nn.functional.cross_entropy(own(inputs), targets)


# Rows.


def test_the_rows_of_a_batch_are_those_that_each_card_has(passes):
    own = model()
    for rows in (70, 70, 7):
        loss_on(own, *batch(rows)).backward()
    assert passes.rows == (1, 2, 4)
    assert (passes.samples, passes.total, passes.unknown) == ((21, 42, 84), 147, 0)


def test_a_batch_of_sequences_counts_its_sequences(passes):
    own = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)).to("penstock")
    tokens = torch.randint(0, 50, (14, 9)).to("penstock")
    logits = own(tokens[:, :-1]).flatten(0, 1)
    nn.functional.cross_entropy(logits, tokens[:, 1:].reshape(-1)).backward()
    assert (passes.rows, passes.unknown) == ((2, 4, 8), 0)


def test_a_batch_that_stays_on_the_cards_counts_in_each_pass(passes):
    own, kept = model(), batch(70)
    for _ in range(3):
        loss_on(own, *kept).backward()
    assert (passes.total, passes.unknown) == (210, 0)


def test_what_is_evaluated_between_is_no_batch(passes):
    own = model()
    for _ in range(2):
        with torch.no_grad():
            own(batch(200)[0])
        loss_on(own, *batch(70)).backward()
    assert (passes.total, passes.unknown) == (140, 0)


def test_two_batches_with_one_backward_pass_are_not_guessed(passes):
    own = model()
    (loss_on(own, *batch(70)) + loss_on(own, *batch(70))).backward()
    assert (passes.rows, passes.total, passes.unknown) == (None, 0, 1)


def test_batches_of_unlike_sizes_with_one_backward_pass_are_not_guessed(passes):
    own, other = model(), nn.Linear(8, 4).to("penstock")
    loss = loss_on(own, *batch(70)) + loss_on(other, *batch(35, 8))
    loss.backward()
    assert (passes.rows, passes.unknown) == (None, 1)


def test_what_no_card_divides_is_not_guessed(passes):
    loss_on(model(), *batch(2)).backward()  # three cards
    assert (passes.rows, passes.unknown) == (None, 1)


def test_gradients_of_gradients_are_no_passes(passes):
    own = model()
    inputs, targets = batch(70)
    inputs.requires_grad_()
    loss = loss_on(own, inputs, targets)
    (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
    (loss + slope.square().sum()).backward()
    assert passes.total + passes.unknown * 70 == 70


@pytest.mark.parametrize(
    ("rows", "of", "found"),
    [((2, 4), 6, (2, 4)), ((20, 40), 6, (2, 4)), ((20, 40), 0, (20, 40)), ((7, 5), 6, (7, 5))],
)
def test_rows_of_a_flattened_batch_are_counted_by_its_first_dimension(rows, of, found):
    assert _in_rows(rows, of) == found


# Losses.


def test_the_loss_is_read_as_the_program_reads_it(passes):
    own = model()
    for _ in range(3):
        loss = loss_on(own, *batch(70))
        loss.backward()
        assert loss_of(passes) == pytest.approx(loss.item(), rel=1e-6)


def test_the_loss_is_that_at_the_backward_pass_whatever_becomes_of_it(passes):
    own = model()
    loss = loss_on(own, *batch(70))
    value = loss.detach().clone()
    loss.backward()
    with torch.no_grad():
        loss.zero_()
    assert loss_of(passes) == pytest.approx(value.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_losses_of_other_types_are_read(passes, dtype):
    own = torch.ones(7, dtype=dtype, device="penstock", requires_grad=True)
    (own.sum() / 2).backward()
    assert loss_of(passes) == 3.5


def test_a_loss_that_is_no_number_is_said_to_be_none(passes):
    own = torch.zeros(70, device="penstock", requires_grad=True)
    (own / 0).sum().backward()
    assert math.isnan(loss_of(passes))


def test_a_pass_that_begins_at_several_values_has_no_loss(passes):
    own = torch.ones(7, device="penstock", requires_grad=True)
    (own * 2).backward(torch.ones(7, device="penstock"))
    torch.autograd.backward([own.sum(), own.square().sum()])
    assert loss_of(passes) is None


def test_a_loss_is_asked_for_once_a_second(passes, monkeypatch):
    monkeypatch.setattr(module, "LOSS_PERIOD_S", 1000.0)
    own = torch.ones(7, device="penstock", requires_grad=True)
    own.sum().backward()
    assert loss_of(passes) == 7
    (own * 2).sum().backward()
    assert passes._replies == []
