"""FLOPs of a traced step equal the closed formula of the architecture."""

import pytest
import torch
from tests.estimate_torch import closed_formulas
from tests.estimate_torch.models.resnet import resnet50
from tests.estimate_torch.models.transformers import GPT2, Bert, mixture

from penstock.estimation.trace_torch import Step, trace

torch.set_num_threads(1)


def tokens(batch, length):
    return lambda: torch.ones(batch, length, dtype=torch.long)


CASES = {
    "resnet50": (resnet50, lambda: torch.empty(2, 3, 224, 224), closed_formulas.resnet50(2)),
    "gpt2-128": (GPT2, tokens(2, 128), closed_formulas.gpt2(2, 128)),
    "gpt2-1024": (GPT2, tokens(1, 1024), closed_formulas.gpt2(1, 1024)),
    "bert": (Bert, tokens(2, 128), closed_formulas.bert(2, 128)),
    "mixture": (mixture, tokens(4, 128), closed_formulas.mixture(4, 128)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_training_step_has_the_flops_of_the_closed_formula(case):
    make_model, sample, expected = CASES[case]
    work = trace(make_model, sample, Step()).work
    assert work.flops["forward"] == expected.forward
    assert work.flops["backward"] == expected.backward
    assert not work.unknown


@pytest.mark.parametrize("case", ["gpt2-128", "mixture"])
def test_a_forward_pass_has_the_flops_of_the_closed_formula(case):
    make_model, sample, expected = CASES[case]
    work = trace(make_model, sample, Step(training=False)).work
    assert work.total_flops == expected.forward
    assert not work.unknown


def test_resnet50_has_the_published_number_of_multiplications():
    work = trace(resnet50, lambda: torch.empty(1, 3, 224, 224), Step(training=False)).work
    assert work.total_flops / 2 == pytest.approx(4.09e9, rel=0.01)  # "4.1 GFLOPs"
