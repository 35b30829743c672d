"""Gradients on the device: those of the CPU, whatever way a program takes them."""

import pytest
import torch
from tests.card.support.comparison import drawn, on_both
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

pytestmark = [
    pytest.mark.usefixtures("eager_splits"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),  # torch's own
]


def _network(device):
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)


def _gradients(model):
    return [one.grad for one in model.parameters()]


def test_gradients_add_up_until_they_are_zeroed():
    def run(device):
        model, given = _network(device), drawn(device, 14, 5)
        model(given).sum().backward()
        model(given).square().sum().backward()
        twice = [one.grad.clone() for one in model.parameters()]
        model.zero_grad(set_to_none=False)
        return twice, _gradients(model)

    on_both(run)


def test_a_gradient_of_a_gradient_is_the_cpus():
    def run(device):
        model, given = _network(device), drawn(device, 14, 5, requires_grad=True)
        (slope,) = torch.autograd.grad(model(given).sum(), given, create_graph=True)
        ((slope.norm(dim=1) - 1) ** 2).mean().backward()
        return slope, given.grad, _gradients(model)

    on_both(run)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_layers_give_the_same_gradients(use_reentrant):
    def run(device):
        model, given = _network(device), drawn(device, 14, 5, requires_grad=True)
        checkpoint(model, given, use_reentrant=use_reentrant).square().sum().backward()
        return given.grad, _gradients(model)

    on_both(run)


def test_a_checkpoint_draws_the_same_numbers_again():
    given = torch.ones(14, 6, device="penstock", requires_grad=True)
    out = checkpoint(lambda x: functional.dropout(x, 0.5), given, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(given.grad, out)
    assert 0 < (out == 0).sum().item() < 84


def test_saved_tensors_may_wait_on_the_cpu():
    def run(device):
        model, given = _network(device), drawn(device, 14, 5, requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            loss = model(given).square().sum()
        loss.backward()
        return given.grad, _gradients(model)

    on_both(run)


def test_every_kind_of_hook_is_called_with_what_the_cpu_passes():
    def run(device):
        seen = {}
        model, given = _network(device), drawn(device, 14, 5, requires_grad=True)

        def note(name):
            return lambda *values: seen.update({name: values[-2:]})

        model[0].register_forward_pre_hook(note("before"))
        model[0].register_forward_hook(note("forward"))
        model[2].register_full_backward_hook(note("backward"))
        model[0].weight.register_hook(note("tensor"))
        model[0].weight.register_post_accumulate_grad_hook(note("accumulated"))
        hidden = model[:2](given)
        hidden.retain_grad()
        hidden.register_hook(lambda slope: slope * 2)
        model[2](hidden).sum().backward()
        seen["before"] = seen["before"][1]
        return seen, hidden.grad, given.grad

    assert len(on_both(run)[0]) == 5


def test_a_function_of_the_programs_own_has_its_own_gradient():
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, given):
            ctx.save_for_backward(given)
            return given.clamp(-1, 1)

        @staticmethod
        def backward(ctx, slope):
            (given,) = ctx.saved_tensors
            return torch.where(given.abs() <= 1, slope, slope * 0.1)

    def run(device):
        given = drawn(device, 14, 5, requires_grad=True)
        Clipped.apply(given * 2).square().sum().backward()
        return given.grad

    on_both(run)


def test_an_error_in_backward_reaches_the_program_and_work_goes_on():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, given):
            return given * 2

        @staticmethod
        def backward(ctx, slope):
            return slope @ slope

    given = torch.ones(2, 3, device="penstock", requires_grad=True)
    with pytest.raises(RuntimeError, match="same reduction dim"):
        Wrong.apply(given).sum().backward()
    (given * 3).sum().backward()
    assert given.grad.cpu().tolist() == [[3.0] * 3] * 2


def test_a_tensor_changed_in_place_after_it_was_saved_is_noticed():
    given = torch.ones(3, device="penstock", requires_grad=True)
    out = given.exp()
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_changes_in_place_and_of_views_have_the_cpus_gradients():
    def run(device):
        given = drawn(device, 14, 6, requires_grad=True)
        copy = given * 1
        copy[:, 1:3] *= 3
        copy.view(-1)[::2].add_(copy.detach()[0, 0])
        copy[2:5] = 7
        copy.t()[4].relu_()
        copy.square().sum().backward()
        return copy, given.grad

    on_both(run)


def test_without_gradients_nothing_is_recorded():
    given = torch.ones(3, device="penstock", requires_grad=True)
    with torch.no_grad():
        assert not (given * 2).requires_grad
    with torch.inference_mode():
        out = given * 2
    assert out.is_inference()
    assert given.detach().data_ptr() == given.data_ptr()


def test_function_transforms_are_the_cpus():
    def run(device):
        weight, given = drawn(device, 5, 3), drawn(device, 14, 5)

        def loss(weight, one):
            return torch.tanh(one @ weight).square().sum()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, given)
        jacobian = torch.func.jacrev(lambda x: torch.tanh(x @ weight))(given[0])
        forward = torch.func.jacfwd(lambda x: torch.tanh(x @ weight))(given[0])
        hessian = torch.func.hessian(loss)(weight, given[0])
        slope = torch.func.jvp(lambda x: x.sin(), (given,), (given,))
        return each, jacobian, forward, hessian, slope

    on_both(run)


def test_a_module_is_called_with_other_parameters():
    def run(device):
        model, given = _network(device), drawn(device, 14, 5)
        parameters = {name: one.detach() * 2 for name, one in model.named_parameters()}
        return torch.func.functional_call(model, parameters, (given,))

    on_both(run)


def test_gradcheck_accepts_a_function_on_the_device():
    given = torch.randn(3, 4, dtype=torch.float64, device="penstock", requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: (x.tanh() @ x.t()).sum(1), (given,))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_names_the_operation_that_made_a_nan():
    given = torch.zeros(3, device="penstock", requires_grad=True)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="SqrtBackward"):
        (given.sqrt() * 0).sum().backward()


def test_parametrizations_have_the_cpus_gradients():
    def run(device):
        model = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)).to(device)
        model(drawn(device, 14, 5)).square().sum().backward()
        return dict(model.named_parameters()), _gradients(model)

    on_both(run)


@pytest.mark.parametrize(
    "combine",
    [
        lambda a, b: a @ b.t(),
        lambda a, b: torch.addmm(a @ a.t(), a, b.t()),
        lambda a, b: a * b,
        lambda a, b: torch.einsum("ij,kj->ik", a, b),
    ],
)
def test_gradients_that_the_cards_have_not_added_up_yet_may_meet_in_one_operation(combine):
    """Each card has partial sums of both: a product of sums is not the sum of the products."""

    def run(device):
        one, other = nn.Linear(64, 32).to(device), nn.Linear(64, 32).to(device)
        given = drawn(device, 28, 64)
        (one(given) * other(given)).square().mean().backward()
        return combine(one.weight.grad, other.weight.grad), other.weight.grad.clone()

    on_both(run)
