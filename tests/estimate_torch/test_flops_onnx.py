"""FLOPs of an ONNX file equal the closed formula of the architecture."""

import pytest
import torch
from tests.estimate_torch import closed_formulas
from tests.estimate_torch.exported import export
from tests.estimate_torch.models.resnet import resnet50
from tests.estimate_torch.models.transformers import GPT2, Bert, balanced_mixture

import penstock

torch.set_num_threads(1)
TOLERANCE = 0.01


def tokens(batch, length):
    return lambda: torch.ones(batch, length, dtype=torch.long)


# The exporter writes attention as two products, whose backward computes nothing again.
CASES = {
    "resnet50": (resnet50, lambda: torch.zeros(1, 3, 224, 224), closed_formulas.resnet50(1)),
    "gpt2-128": (GPT2, tokens(1, 128), closed_formulas.gpt2(1, 128, recomputed=False)),
    "gpt2-1024": (GPT2, tokens(1, 1024), closed_formulas.gpt2(1, 1024, recomputed=False)),
    "bert": (Bert, tokens(1, 128), closed_formulas.bert(1, 128, recomputed=False)),
    "mixture": (
        balanced_mixture, tokens(2, 128), closed_formulas.mixture(2, 128, recomputed=False)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_onnx_file_has_the_flops_of_the_closed_formula(case, tmp_path):
    make_model, sample, expected = CASES[case]
    path = export(make_model, sample, tmp_path / "model.onnx")
    work = penstock.estimate(path).work
    assert work.flops["forward"] == pytest.approx(expected.forward, rel=TOLERANCE)
    assert work.flops["backward"] == pytest.approx(expected.backward, rel=TOLERANCE)
    assert not work.unknown
    assert penstock.estimate(path, training=False).work.total_flops == work.flops["forward"]
