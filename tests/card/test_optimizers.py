"""Every optimizer of torch moves parameters on the device as it does on the CPU, in every form."""

import copy

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler, swa_utils

pytestmark = [
    pytest.mark.usefixtures("eager_splits"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),  # torch's own
]

FORMS = {
    "Adadelta": ("loop", "foreach"),
    "Adafactor": ("loop", "foreach"),
    "Adagrad": ("loop", "foreach"),
    "Adam": ("loop", "foreach", "fused"),
    "AdamW": ("loop", "foreach", "fused"),
    "Adamax": ("loop", "foreach"),
    "ASGD": ("loop", "foreach"),
    "NAdam": ("loop", "foreach"),
    "RAdam": ("loop", "foreach"),
    "RMSprop": ("loop", "foreach"),
    "Rprop": ("loop", "foreach"),
    "SGD": ("loop", "foreach", "fused"),
}
OPTIONS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "RMSprop": {"lr": 0.01, "centered": True, "momentum": 0.5},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "Muon": {"lr": 0.01, "weight_decay": 0.1},
}
CASES = [(name, form) for name, forms in FORMS.items() for form in forms]


def _pair():
    """A model in float64, where no rounding is lifted by what divides by its size, and its copy."""
    torch.manual_seed(4)
    own = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()
    return own, copy.deepcopy(own).to("penstock")


def _train(model, optimizer, given, each_step=None):
    for _ in range(3):

        def loss():
            optimizer.zero_grad()
            value = model(given).square().sum()
            value.backward()
            return value

        optimizer.step(loss)
        if each_step is not None:
            each_step()


def _assert_equal(moved, own, rtol=1e-8):
    for (name, one), other in zip(moved.named_parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(
            one.cpu(), other, rtol=rtol, atol=1e-10, msg=lambda text, part=name: f"{part}: {text}"
        )


def _compare(make, each_step=lambda model, optimizer: None):
    own, moved = _pair()
    given = torch.randn(14, 6, dtype=torch.float64)
    optimizers = []
    for model, one in ((own, given), (moved, given.to("penstock"))):
        optimizer = make(model.parameters())
        optimizers.append(optimizer)
        _train(model, optimizer, one, each_step(model, optimizer))
    _assert_equal(moved, own)
    return optimizers


@pytest.mark.parametrize(("name", "form"), CASES)
def test_an_optimizer_moves_parameters_as_on_the_cpu(name, form):
    options = {"lr": 0.01, **OPTIONS.get(name, {}), "foreach": form == "foreach"}
    if form == "fused":
        options = {**options, "fused": True, "foreach": None}
    _compare(lambda parameters: getattr(optim, name)(parameters, **options))


def test_every_optimizer_of_torch_is_tested():
    known = {*FORMS, "LBFGS", "Muon", "SparseAdam", "Optimizer"}
    assert {name for name in dir(optim) if name[0].isupper()} == known


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_calls_the_model_as_often_as_on_the_cpu(line_search):
    one, other = _compare(
        lambda parameters: optim.LBFGS(parameters, lr=0.1, line_search_fn=line_search)
    )
    evaluations = [each.state_dict()["state"][0]["func_evals"] for each in (one, other)]
    assert evaluations[0] == evaluations[1] > 3


def test_muon_moves_matrices_as_on_the_cpu():
    own, moved = _pair()
    given = torch.randn(14, 6, dtype=torch.float64)
    for model, one in ((own, given), (moved, given.to("penstock"))):
        matrices = [each for each in model.parameters() if each.dim() == 2]
        _train(model, optim.Muon(matrices, **OPTIONS["Muon"]), one)
    for one, other in zip(moved.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0.05, atol=1e-3)  # it works in bfloat16


def test_sparse_gradients_are_refused_with_what_to_do():
    embedding = nn.Embedding(10, 3, sparse=True).to("penstock")
    with pytest.raises(NotImplementedError, match=r"sparse.*CPU"):
        embedding(torch.tensor([1, 2], device="penstock")).sum().backward()


@pytest.mark.parametrize("make", [
    lambda one: lr_scheduler.StepLR(one, 1, 0.5),
    lambda one: lr_scheduler.CosineAnnealingLR(one, 5),
    lambda one: lr_scheduler.OneCycleLR(one, 0.1, total_steps=10),
    lambda one: lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step)),
    lambda one: lr_scheduler.SequentialLR(one, [
        lr_scheduler.LinearLR(one, 0.1, total_iters=1), lr_scheduler.ExponentialLR(one, 0.5)], [1]),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
def test_a_learning_rate_schedule_is_followed(make):
    def each_step(_, optimizer):
        return make(optimizer).step

    for momentum in ({"momentum": 0.9},):
        _compare(lambda parameters, m=momentum: optim.SGD(parameters, 0.05, **m), each_step)


def test_a_learning_rate_may_be_a_tensor():
    _compare(lambda parameters: optim.AdamW(parameters, lr=torch.tensor(0.01), foreach=False))


def test_capturable_optimizers_keep_their_steps_on_the_device():
    _compare(
        lambda parameters: optim.AdamW(
            parameters, lr=0.01, foreach=True, amsgrad=True, differentiable=False, maximize=True
        )
    )


def test_groups_have_settings_of_their_own():
    def make(parameters):
        parameters = list(parameters)
        return optim.SGD(
            [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "momentum": 0.5}],
            lr=0.01,
        )

    _compare(make)


@pytest.mark.parametrize("foreach", [False, True])
def test_gradients_are_clipped_as_on_the_cpu(foreach):
    own, moved = _pair()
    given = torch.randn(14, 6, dtype=torch.float64)
    norms = []
    for model, one in ((own, given), (moved, given.to("penstock"))):
        model(one).square().sum().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach).item())
        nn.utils.clip_grad_value_(model.parameters(), 0.01, foreach=foreach)
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    for one, other in zip(moved.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad)


@pytest.mark.parametrize("average", [None, swa_utils.get_ema_multi_avg_fn(0.9)])
def test_an_averaged_model_follows_as_on_the_cpu(average):
    own, moved = _pair()
    given = torch.randn(14, 6, dtype=torch.float64)
    averages = []
    for model, one in ((own, given), (moved, given.to("penstock"))):
        averaged = swa_utils.AveragedModel(model, multi_avg_fn=average)
        _train(
            model,
            optim.SGD(model.parameters(), 0.05),
            one,
            lambda a=averaged, m=model: a.update_parameters(m),
        )
        averages.append(averaged)
    _assert_equal(averages[1], averages[0], rtol=1e-6)  # its weights are of float32


def test_an_optimizers_state_is_saved_and_loaded():
    own, moved = _pair()
    given = torch.randn(14, 6, dtype=torch.float64)
    first = optim.AdamW(own.parameters(), 0.01)
    _train(own, first, given)
    moved.load_state_dict(own.state_dict())
    second = optim.AdamW(moved.parameters(), 0.01)
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # it keeps what it is given
    assert {one.device.type for state in second.state.values()
            for name, one in state.items() if name != "step"} == {"penstock"}  # fmt: skip
    _train(own, first, given)
    _train(moved, second, given.to("penstock"))
    _assert_equal(moved, own)
