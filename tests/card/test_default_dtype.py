"""torch.set_default_dtype: what integers become, and what is made of floats."""

import pytest
import torch

MAKING = {
    "full": lambda one: torch.full((3,), 1 / 3, device=one.device),
    "linspace": lambda one: torch.linspace(0, 1, 4, device=one.device),
    "arange": lambda one: torch.arange(0, 1, 0.1, device=one.device),
    "square root": torch.sqrt,
    "sigmoid": torch.sigmoid,
    "quotient": lambda one: one / 3,
    "product": lambda one: one * 0.1,
    "product with an imaginary number": lambda one: one * 0.1j,
    "quotient of what depends on data": lambda one: torch.nonzero(one) / 3,
}


@pytest.fixture
def default_dtype():
    """Sets the default type for one test."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize("made", MAKING.values(), ids=MAKING)
def test_results_have_type_and_digits_of_the_cpus_after_each_change(cards, default_dtype, made):
    on_cpu = torch.arange(1, 9)
    on_cards = on_cpu.to("penstock")
    for dtype in (torch.float32, torch.float64, torch.float32, torch.float64):
        default_dtype(dtype)
        torch.testing.assert_close(
            made(on_cards).cpu(),
            made(on_cpu),
            rtol=1e-6 if dtype is torch.float32 else 1e-15,
            atol=0,
        )


def test_a_model_that_is_made_under_another_default_has_that_type(cards, default_dtype):
    default_dtype(torch.bfloat16)
    with torch.device("penstock"):
        layer = torch.nn.Linear(4, 2)
    assert layer(torch.ones(3, 4, device="penstock")).dtype is torch.bfloat16
    default_dtype(torch.float32)
    assert torch.ones(3, device="penstock").mul(0.5).dtype is torch.float32
