"""Batch normalization over all ranks' samples."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.training.support.together import together
from torch import nn

from penstock.training.pytorch.backward import Mine, WholeBatch
from penstock.training.pytorch.batch_norm import normalized

SHAPES = {"vectors": (12, 5), "lines": (12, 5, 7), "images": (12, 5, 4, 3)}


@pytest.mark.parametrize("split", [(7, 5), (11, 1), (12, 0), (5, 4, 2, 1)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_gradients_and_running_statistics_are_those_of_the_whole_batch(shape, split):
    torch.manual_seed(0)
    given = torch.randn(SHAPES[shape], dtype=torch.float64) * 3 + 50
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[given.dim()]
    model = kind(5, dtype=torch.float64)
    nn.init.normal_(model.weight)
    # What is before the normalization gets its gradient through it.
    model.before = nn.Parameter(torch.rand([1, *SHAPES[shape][1:]], dtype=torch.float64))
    models = [copy.deepcopy(model) for _ in split]
    out = model(given * model.before)
    out.pow(3).mean().backward()

    def work(ranks):
        own, whole = models[ranks.rank], WholeBatch(ranks)
        rows, first = split[ranks.rank], sum(split[: ranks.rank])
        mine = given[first : first + rows] if rows else given[:1]
        whole.mine = Mine(rows, max(rows, 1))
        made = normalized(
            ranks, mine * own.before, own.running_mean, own.running_var, own.weight, own.bias,
            0.1, 1e-5, counts=rows > 0,
        )  # fmt: skip
        whole.backward(made.pow(3).mean())
        return rows, made.detach(), own

    found = together(len(split), work)
    torch.testing.assert_close(torch.cat([one[1] for one in found if one[0]]), out.detach())
    for _, _, own in found:
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(getattr(own, name), getattr(model, name))
        for mine, theirs in zip(own.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
