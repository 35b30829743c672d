"""What a trace counts and names, and what it leaves alone."""

import pytest
import torch
from tests.estimate_torch.models.transformers import GPT2, Experts, small_gpt
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import penstock
from penstock.estimation.trace_torch import Step, trace

torch.set_num_threads(1)
FORWARD = Step(training=False)


class Calls(nn.Module):
    """A layer, and then whatever `function` does with it."""

    def __init__(self, function, width=8):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.function = function

    def forward(self, x):
        return self.function(self.layer(x))


def traced(function, shape=(4, 8), step=None):
    return trace(lambda: Calls(function), lambda: torch.empty(shape), step or Step())


LAYER = 2 * 4 * 8 * 8


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: torch.cdist(x, x), "aten._cdist_forward"),
        (torch.linalg.svdvals, "aten._linalg_svd"),
        (lambda x: torch.fft.fft(x).real, "aten._fft_r2c"),
    ],
)
def test_an_operation_that_is_not_known_is_named_and_never_counted_as_nothing(function, name):
    work = traced(function, step=FORWARD).work
    assert work.unknown[name].calls == 1
    assert work.unknown[name].elements >= 32
    assert work.total_flops == LAYER


def test_a_users_own_operation_is_named():
    @torch.library.custom_op("penstock_test::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    triple.register_fake(torch.empty_like)
    assert traced(triple, step=FORWARD).work.unknown["penstock_test.triple"].calls == 1


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu_is_counted(causal):
    def attention(x):
        q = x.view(1, 2, 4, 4)
        return functional.scaled_dot_product_attention(q, q, q, is_causal=causal)

    work = traced(attention).work
    products = 2 * 2 * 4 * 4 * 4  # two heads; each product of the scores' size
    assert work.flops["forward"] == LAYER + 2 * products
    assert work.flops["backward"] == LAYER + 5 * products  # q·kᵀ is computed again


@pytest.mark.parametrize("by_place", [False, True])
def test_attention_with_dropout_is_one_kernel_that_keeps_no_scores(by_place):
    def attention(dropout):
        def function(x):
            q = x.view(1, 1, 256, 8)
            if by_place:
                return functional.scaled_dot_product_attention(q, q, q, None, dropout)
            return functional.scaled_dot_product_attention(q, q, q, dropout_p=dropout)

        return function

    with_dropout, without = (traced(attention(part), (256, 8)) for part in (0.1, 0.0))
    assert with_dropout.work == without.work
    assert with_dropout.memory == without.memory
    assert with_dropout.memory.parts["activations"] < 4 * 256 * 256  # one matrix of scores


def test_a_transformer_layer_of_pytorch_keeps_no_scores_either():
    def layer(dropout):
        return lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)

    sample = lambda: torch.empty(1, 256, 16)  # noqa: E731
    works = [trace(layer(dropout), sample, Step()).work for dropout in (0.1, 0.0)]
    assert works[0].by_operation == works[1].by_operation
    assert "bmm" not in works[0].by_operation


def test_products_in_inference_mode_are_counted():
    def products(x):
        with torch.inference_mode():
            return torch.nn.functional.linear(x, x) @ x

    work = traced(products, step=FORWARD).work
    assert work.total_flops == LAYER + 2 * (2 * 4 * 4 * 8)
    assert not work.unknown


def test_lengths_that_the_program_itself_has_are_known():
    def parts(x):
        sizes = torch.tensor([1, 3])
        return sum(one.sum() for one in x.split(sizes.tolist()))

    found = traced(parts)
    assert not any("assumed" in note for note in found.notes)


def test_sparse_gradients_are_refused_or_named():
    with pytest.raises(penstock.PenstockError, match="backward pass failed"):
        trace(
            lambda: nn.Embedding(10, 4, sparse=True),
            lambda: torch.ones(3, dtype=torch.long),
            Step(),
        )


def test_a_checkpointed_layer_is_counted_twice():
    plain = traced(functional.relu).work
    inner = nn.Linear(8, 8)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = inner

        def forward(self, x):
            return checkpoint(lambda y: functional.relu(self.layer(y)), x, use_reentrant=False)

    again = trace(Checkpointed, lambda: torch.empty(4, 8), Step()).work
    assert again.flops["forward"] == plain.flops["forward"]
    assert again.flops["backward"] == plain.flops["backward"] + LAYER


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_has_its_two_products_a_step(kind, gates):
    steps, batch, inner, cell = 5, 2, 8, 16
    work = trace(lambda: kind(inner, cell), lambda: torch.empty(steps, batch, inner), FORWARD).work
    assert work.total_flops == 2 * steps * batch * gates * cell * (inner + cell)
    assert not work.unknown


def test_a_transformer_layer_in_evaluation_is_no_single_unknown_operation():
    def layer():
        return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()

    work = trace(layer, lambda: torch.empty(2, 5, 16), FORWARD).work
    projections = 2 * 10 * 16 * (48 + 16 + 32 + 32)
    assert work.total_flops == projections + 2 * 2 * 2 * 5 * 5 * 16
    assert not work.unknown


def test_each_chosen_expert_is_counted_once_a_token_whatever_is_chosen():
    found = trace(lambda: Experts(width=16), lambda: torch.empty(3, 50, 16), FORWARD)
    tokens = 150
    router = 2 * tokens * 16 * 8
    assert found.work.total_flops == router + 2 * tokens * (2 * 16 * 64 * 2)
    assert any("nonzero" in note for note in found.notes)


def test_no_expert_is_left_without_tokens():
    found = trace(lambda: Experts(width=128), lambda: torch.empty(2, 20, 128), Step())
    assert found.memory.parts["gradients"] == found.memory.parts["parameters"]


def test_a_real_module_may_have_buffers_and_tensors_that_are_neither():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("shift", torch.ones(8))
            self.scales = [torch.ones(8)]

        def forward(self, x):
            return self.layer(x) * self.scales[0] + self.shift

    found = penstock.estimate(Scaled(), torch.empty(4, 8))
    assert found.work.flops["forward"] == LAYER
    assert found.memory.parts["buffers"] == 4 * 8


def test_the_data_of_a_real_module_are_not_copied():
    model = nn.Linear(1, 1, bias=False)
    model.weight = nn.Parameter(torch.zeros(1).expand(2**24, 2**24))  # a copy has a petabyte
    found = penstock.estimate(model, lambda: torch.empty(4, 2**24), training=False)
    assert found.work.total_flops == 2 * 4 * 2**48


def test_autocast_moves_products_to_the_low_precision():
    work = traced(functional.relu, step=Step(precision="bf16")).work
    assert set(work.by_dtype) == {"bf16"}


@pytest.mark.parametrize("convert", [nn.Module.half, lambda one: one.to(torch.bfloat16)])
def test_a_model_may_be_converted_as_it_is_made(convert):
    def make():
        return convert(nn.Linear(8, 8))

    def sample():
        return torch.empty(4, 8, dtype=next(make().parameters()).dtype)

    work = trace(make, sample, FORWARD).work
    assert work.total_flops == LAYER
    assert "fp32" not in work.by_dtype


def test_a_model_larger_than_any_machine_takes_no_memory():
    def layers():
        return nn.Sequential(*(nn.Linear(2**20, 2**20, bias=False) for _ in range(4)))

    found = trace(layers, lambda: torch.empty(8, 2**20), Step())
    assert found.memory.parts["parameters"] == 4 * 4 * 2**40
    assert found.memory.parts["gradients"] == 4 * 4 * 2**40
    assert found.memory.parts["optimizer state"] >= 2 * 4 * 4 * 2**40
    assert found.parameters == 4 * 2**40


def test_the_users_module_is_left_alone():
    model = small_gpt()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    penstock.estimate(model, torch.ones(2, 16, dtype=torch.long))
    assert model.head.weight is model.words.weight
    assert all(one.grad is None for one in model.parameters())
    for name, one in model.state_dict().items():
        assert type(one) is torch.Tensor
        assert torch.equal(one, before[name])


def test_tied_weights_are_one_storage():
    tied = trace(small_gpt, lambda: torch.ones(2, 16, dtype=torch.long), Step())
    assert tied.memory.parts["parameters"] == 4 * tied.parameters
    model = penstock.estimate(small_gpt(), torch.ones(2, 16, dtype=torch.long))
    assert model.memory.parts == tied.memory.parts


def test_a_real_module_and_a_function_that_makes_it_give_the_same():
    sample = torch.ones(2, 16, dtype=torch.long)
    made = penstock.estimate(small_gpt, sample, step_time="10ms")
    real = penstock.estimate(small_gpt(), sample, step_time="10ms")
    assert made.work == real.work
    assert made.memory == real.memory


def test_the_optimizers_differ_by_their_state():
    parts = {
        name: penstock.estimate(small_gpt, torch.ones(2, 16, dtype=torch.long), optimizer=name)
        .memory.parts["optimizer state"]
        for name in ("sgd", "momentum", "adamw")
    }  # fmt: skip
    parameters = 4 * sum(one.numel() for one in small_gpt().parameters())
    assert parts["sgd"] == 0
    assert parts["momentum"] == parameters
    assert parts["adamw"] == pytest.approx(2 * parameters, rel=1e-3)


def test_after_an_error_tensors_have_data_again():
    with pytest.raises(penstock.PenstockError):
        penstock.estimate(lambda: nn.Linear(5, 4), torch.empty(3, 4))
    assert type(torch.empty(1)) is torch.Tensor


def test_gpt2_has_its_published_number_of_parameters():
    assert (
        trace(GPT2, lambda: torch.ones(1, 8, dtype=torch.long), FORWARD).parameters == 124_439_808
    )
