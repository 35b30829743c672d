"""Gradients that torch puts together in front of the batch stay split, and mean what they do."""

import copy

import pytest
import torch
from tests.card.support.comparison import drawn, on_both
from torch import nn
from torch.nn import functional

from penstock.card.frames import Kind, unpack_figures

pytestmark = pytest.mark.usefixtures("eager_splits")

WAYS = {
    "unbind": lambda x: x.unbind(0),
    "select": lambda x: (x[0], x[1], x[2]),
    "two of three": lambda x: (x[0], x[1], x[1]),
    "unbind, one unused": lambda x: (x.unbind(0)[0], *x.unbind(0)[::2]),
}


class Attention(nn.Module):
    """Attention as many vision transformers have it: one product for query, key and value."""

    def __init__(self, way):
        super().__init__()
        self.parts = WAYS[way]
        self.joint, self.last = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        batch, length, width = x.shape
        joint = self.joint(x).reshape(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        query, key, value = self.parts(joint)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.last(mixed.transpose(1, 2).reshape(batch, length, width))


def gathers(cards):
    """What the planner and the cards themselves count."""
    figures = [unpack_figures(one).gathers for one in cards.stream.ask(Kind.FIGURES)]
    return cards.planner.gathered.total(), figures


@pytest.mark.parametrize("way", WAYS)
def test_attention_whose_parts_lie_in_front_of_the_batch_gathers_nothing(cards, way):
    torch.manual_seed(2)
    own, given = Attention(way), torch.randn(14, 5, 32)
    moved, uploaded = copy.deepcopy(own).to("penstock"), given.to("penstock")
    before = gathers(cards)
    moved(uploaded).square().mean().backward()
    assert gathers(cards) == before, cards.planner.gathered
    own(given).square().mean().backward()
    for one, other in zip(moved.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dim", [1, 2, -1])
def test_tensors_are_stacked_behind_the_batch_without_an_exchange(cards, dim):
    given, weight = torch.randn(14, 8), torch.randn(8, 8)
    split = torch.relu(given.to("penstock") @ weight.to("penstock"))
    before = gathers(cards)
    stacked = torch.stack([split, split + 1, split * 2], dim)
    assert gathers(cards) == before
    one = torch.relu(given @ weight)
    torch.testing.assert_close(stacked.cpu(), torch.stack([one, one + 1, one * 2], dim))


class Joined(torch.autograd.Function):
    """Somebody's own function, whose backward counts on what torch.stack returns."""

    @staticmethod
    def forward(_, x):
        return x[0] + 2 * x[1]

    @staticmethod
    def backward(_, gradient):
        return torch.stack([gradient, 2 * gradient]).view(-1).view(2, *gradient.shape)


def test_what_a_program_stacks_itself_is_contiguous_also_in_its_own_backward():
    def program(device):
        x, weight = drawn(device, 14, 8, requires_grad=True), drawn(device, 8, 8)
        rows = torch.tanh(x @ weight)
        flat = torch.stack([rows, rows + 1]).view(-1)
        Joined.apply(torch.stack([rows, rows * 3])).square().sum().backward()
        return flat, x.grad

    on_both(program, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_leaf_lies_as_the_leaf_does(cards):
    leaf = torch.randn(3, 14, 8, device="penstock", requires_grad=True)
    weight = torch.randn(8, 8, device="penstock")
    first, second, third = (torch.relu(one @ weight) for one in leaf.unbind(0))
    (first * second + third).sum().backward()
    assert leaf.grad.stride() == leaf.stride()
    found, leaf = leaf.grad.cpu(), leaf.detach().cpu().requires_grad_()
    first, second, third = (torch.relu(one @ weight.cpu()) for one in leaf.unbind(0))
    (first * second + third).sum().backward()
    torch.testing.assert_close(found, leaf.grad, rtol=1e-4, atol=1e-4)


def test_second_gradients_flow_through_it():
    def program(device):
        x, weight = drawn(device, 14, 8, requires_grad=True), drawn(device, 8, 8)
        parts = torch.tanh(x @ weight).reshape(14, 2, 4).permute(1, 0, 2)
        loss = (parts.unbind(0)[0] * parts[1]).square().sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        gradient.square().sum().backward()
        return gradient, x.grad

    on_both(program, rtol=1e-4, atol=1e-4)
