"""Gradients of parts of a batch, added up: they are those of the whole batch."""

from __future__ import annotations

import pytest
import torch
from tests.training.support.together import together
from torch import nn
from torch.nn import functional

from penstock.model import PenstockError
from penstock.training.pytorch.backward import Mine, WholeBatch

ROWS = 12
SPLITS = [(7, 5), (11, 1), (12, 0), (6, 3, 2, 1), (9, 3, 0, 0), (4, 4, 3, 1), (3, 3, 6)]


class Batch:
    """Inputs, classes (some of which are padding), numbers and masks of some samples."""

    def __init__(self, of=slice(None)):
        given = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(ROWS, 6, generator=given)[of]
        self.classes = torch.randint(0, 5, (ROWS,), generator=given)
        self.classes[3:6] = -100
        self.classes = self.classes[of]
        self.numbers = torch.randn(ROWS, 5, generator=given)[of]
        self.mask = torch.rand(ROWS, 5, generator=given) > 0.3
        self.mask[:5] = False
        self.mask = self.mask[of]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))


def kl(out, batch):
    target = batch.numbers.softmax(1)
    return functional.kl_div(out.log_softmax(1), target, reduction="batchmean")


LOSSES = {
    "cross entropy with padding": lambda o, b: functional.cross_entropy(o, b.classes),
    "its sum": lambda o, b: functional.cross_entropy(o, b.classes, reduction="sum"),
    "smoothed": lambda o, b: functional.cross_entropy(o, b.classes, label_smoothing=0.1),
    "of classes with weights": lambda o, b: functional.cross_entropy(
        o, b.classes, weight=torch.arange(1.0, 6.0)
    ),
    "of probabilities": lambda o, b: functional.cross_entropy(o, b.numbers.softmax(1)),
    "squares": lambda o, b: functional.mse_loss(o, b.numbers),
    "one of several micro-batches": lambda o, b: functional.mse_loss(o, b.numbers) / 4,
    "smooth": lambda o, b: functional.smooth_l1_loss(o, b.numbers),
    "by samples, then of samples": lambda o, b: (o - b.numbers).abs().mean(1).mean(),
    "of samples, then by numbers": lambda o, b: (o - b.numbers).abs().mean(0).sum(),
    "masked": lambda o, b: ((o - b.numbers).abs() * b.mask).sum() / b.mask.sum(),
    "divided by a size": lambda o, b: o.square().sum() / o.size(0),
    "divided by a size, scaled": lambda o, b: o.square().sum() * (0.5 / len(o)) * 3,
    "divided by a number of the program": lambda o, b: o.square().sum() / 12,
    "batchmean": kl,
    "minus": lambda o, b: 1 - functional.cosine_similarity(o, b.numbers).mean(),
}  # fmt: skip


def two(out, batch):
    """Means over words and over samples."""
    return functional.cross_entropy(out, batch.classes) + 2 * out.square().mean()


def of_the_whole(loss_of, make=network):
    model = make()
    loss = loss_of(model(Batch().inputs), Batch())
    loss.backward()
    return loss.item(), [one.grad for one in model.parameters()]


def in_parts(split, loss_of, make=network, steps=1):
    """The loss and the gradients of each rank, after `steps` backwards."""

    def work(ranks):
        model, whole = models[ranks.rank], WholeBatch(ranks)
        rows = split[ranks.rank]
        first = sum(split[: ranks.rank])
        batch = Batch(slice(first, first + rows) if rows else slice(0, 1))
        whole.mine = Mine(rows, max(rows, 1))
        for _ in range(steps):
            loss = loss_of(model(batch.inputs), batch)
            whole.backward(loss)
        return loss.item(), [one.grad for one in model.parameters()]

    models = [make() for _ in split]
    return together(len(split), work)


def error_of(found, wanted):
    difference = sum((a - b).square().sum() for a, b in zip(found, wanted, strict=True))
    return (difference / sum(one.square().sum() for one in wanted)).sqrt().item()


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_every_rank_has_the_gradients_and_the_loss_of_the_whole_batch(name, split):
    value, wanted = of_the_whole(LOSSES[name])
    for loss, gradients in in_parts(split, LOSSES[name]):
        assert error_of(gradients, wanted) < 1e-6
        assert loss == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_means_over_different_things_may_be_added(split):
    _, wanted = of_the_whole(two)
    for _, gradients in in_parts(split, two):
        assert error_of(gradients, wanted) < 1e-6


@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_of_several_backwards_are_added_as_always(steps):
    def loss_of(out, batch):
        return functional.mse_loss(out, batch.numbers)

    _, once = of_the_whole(loss_of)
    for _, gradients in in_parts((7, 5), loss_of, steps=steps):
        assert error_of(gradients, [steps * one for one in once]) < 1e-6


def penalized(model):
    def loss_of(out, batch):
        penalty = sum(one.square().sum() for one in model.parameters())
        return functional.mse_loss(out, batch.numbers) + 0.1 * penalty + model[0].weight.norm()

    return loss_of


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_a_penalty_on_parameters_counts_once(split):
    model = network()
    loss = penalized(model)(model(Batch().inputs), Batch())
    loss.backward()
    wanted = [one.grad for one in model.parameters()]

    def work(ranks):
        own, whole = models[ranks.rank], WholeBatch(ranks)
        rows, first = split[ranks.rank], sum(split[: ranks.rank])
        batch = Batch(slice(first, first + rows) if rows else slice(0, 1))
        whole.mine = Mine(rows, max(rows, 1))
        mine = penalized(own)(own(batch.inputs), batch)
        whole.backward(mine)
        return mine.item(), [one.grad for one in own.parameters()]

    models = [network() for _ in split]
    for value, gradients in together(len(split), work):
        assert error_of(gradients, wanted) < 1e-6
        assert value == pytest.approx(loss.item(), rel=1e-5)


REFUSED = {
    "a root of a mean": (lambda o, b: functional.mse_loss(o, b.numbers).sqrt(), "SqrtBackward0"),
    "a product of means": (lambda o, b: o.mean() * o.square().mean(), "MulBackward0"),
    "a norm of outputs": (lambda o, b: o.norm(), "LinalgVectorNormBackward0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sum_of_means_is_refused_on_all_ranks(name):
    loss_of, word = REFUSED[name]
    with pytest.raises(PenstockError, match=word):
        in_parts((7, 5), loss_of)


SEEING = {
    "pairs of a batch": lambda z, b: functional.cross_entropy(z @ z.T, torch.arange(len(z))),
    "a mean of the batch in the model": lambda z, b: (z - z.mean(0)).square().mean(),
    "attention over the batch": lambda z, b: functional.scaled_dot_product_attention(
        *[z[None].repeat(2, 1, 1)] * 3
    ).square().mean(),
    "a softmax over the batch": lambda z, b: (z.softmax(0) * b.numbers).sum(),
    "negatives by rolling": lambda z, b: (z * z.roll(1, 0)).mean(),
    "another order": lambda z, b: (z * z[torch.arange(len(z)).flip(0)]).mean(),
    "distances": lambda z, b: torch.cdist(z, z).mean(),
    "products": lambda z, b: (z.T @ z).square().sum(),
    "the largest": lambda z, b: z.max(0).values.sum() + z.mean(),
    "a layer norm over all": lambda z, b: functional.layer_norm(z, z.shape).square().mean(),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEING)
def test_samples_that_see_each_other_are_refused_on_all_ranks(name):
    with pytest.raises(PenstockError, match="sample"):
        in_parts((7, 5), SEEING[name])


APART = {
    "attention within samples": lambda z, b: functional.scaled_dot_product_attention(
        *[z[:, :, None].repeat(1, 1, 4)] * 3
    ).square().mean(),
    "a softmax of each": lambda z, b: (z.softmax(1) * b.numbers).mean(),
    "some of them": lambda z, b: z[b.classes >= 0].square().sum() / 12,
    "the largest of each": lambda z, b: z.max(1).values.mean(),
    "words as rows": lambda z, b: functional.cross_entropy(
        z[:, :, None].repeat(1, 1, 3).transpose(1, 2).reshape(-1, 5), b.classes.repeat_interleave(3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_each_sample_has_for_itself_is_right(name):
    value, wanted = of_the_whole(APART[name])
    for loss, gradients in in_parts((7, 5), APART[name]):
        assert error_of(gradients, wanted) < 1e-6
        assert loss == pytest.approx(value, rel=1e-5)
