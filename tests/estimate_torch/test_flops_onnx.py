"""FLOPs of an ONNX file equal the closed formula of the architecture."""

import pytest
import torch
from tests.estimate_torch import closed_formulas
from tests.estimate_torch.exported import export
from tests.estimate_torch.models.resnet import resnet50
from tests.estimate_torch.models.transformers import GPT2, Bert, balanced_mixture

import penstock

torch.set_num_threads(1)


def tokens(batch, length):
    return lambda: torch.ones(batch, length, dtype=torch.long)


# The exporter writes attention as two products, whose backward computes nothing again.
CASES = {
    "resnet50": (resnet50, lambda: torch.zeros(1, 3, 224, 224), closed_formulas.resnet50(1)),
    "bert": (Bert, tokens(1, 128), closed_formulas.bert(1, 128, recomputed=False)),
    "mixture": (
        balanced_mixture, tokens(2, 128), closed_formulas.mixture(2, 128, recomputed=False)
    ),
}  # fmt: skip


def check(path, expected, **dims):
    work = penstock.estimate(path, dims=dims).work
    assert work.flops["forward"] == expected.forward
    assert work.flops["backward"] == expected.backward
    assert not work.unknown
    forward_only = penstock.estimate(path, dims=dims, training=False).work
    assert forward_only.total_flops == work.flops["forward"]


@pytest.mark.parametrize("case", CASES)
def test_an_onnx_file_has_the_flops_of_the_closed_formula(case, tmp_path):
    make_model, sample, expected = CASES[case]
    check(export(make_model, sample, tmp_path / "model.onnx"), expected)


def test_one_file_of_gpt2_has_the_flops_of_the_closed_formula_at_both_lengths(tmp_path):
    path = export(GPT2, tokens(1, 16), tmp_path / "model.onnx", {0: "N", 1: "T"})
    for length in (128, 1024):
        check(path, closed_formulas.gpt2(1, length, recomputed=False), N=1, T=length)
