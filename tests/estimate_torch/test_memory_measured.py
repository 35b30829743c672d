"""Memory of a traced step equals what the allocator reports of the same step, really run."""

import pytest
import torch
from tests.estimate_torch import measured
from tests.estimate_torch.models.autoencoder import autoencoder
from tests.estimate_torch.models.resnet import resnet18
from tests.estimate_torch.models.transformers import small_gpt

from penstock.estimation.trace_torch import OPTIMIZERS, Step, trace

torch.set_num_threads(1)


def square_sum(output):
    return output.pow(2).mean()


CASES = {
    "resnet18": (resnet18, lambda: torch.rand(16, 3, 96, 96), measured.cross_entropy),
    "gpt": (small_gpt, lambda: torch.ones(16, 64, dtype=torch.long), measured.cross_entropy),
    "autoencoder": (autoencoder, lambda: torch.rand(64, 1, 64, 64), square_sum),
}


@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
@pytest.mark.parametrize("case", CASES)
def test_memory_is_within_a_tenth_of_what_the_allocator_reports(case, optimizer, record_property):
    make_model, sample, loss = CASES[case]
    step = Step(optimizer=OPTIMIZERS[optimizer], loss=loss)
    estimated = trace(make_model, sample, step).memory.peak_bytes
    real = measured.peak_bytes(make_model, sample, OPTIMIZERS[optimizer], loss)
    record_property("memory", f"{case}, {optimizer}: {estimated / real - 1:+.1%} of {real:,} bytes")
    assert estimated == pytest.approx(real, rel=0.10)
