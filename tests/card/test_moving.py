"""Models and tensors move to the device and back: what was one object stays one object."""

import copy

import pytest
import torch
from tests.card.support import models
from tests.card.support.comparison import drawn, on_both
from torch import nn

pytestmark = pytest.mark.usefixtures("eager_splits")


@pytest.mark.parametrize("move", [
    lambda model: model.to("penstock"),
    lambda model: model.to(torch.device("penstock", 0)),
    lambda model: model.penstock(),
    lambda model: model.to(torch.empty(0, device="penstock")),
    lambda model: model.to(device="penstock", dtype=torch.float64, non_blocking=True),
])  # fmt: skip
def test_parameters_keep_their_identity_when_a_model_moves(move):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.tied = model[0].weight
    before = list(model.parameters())
    assert move(model) is model
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert model.tied is model[0].weight
    assert {one.device.type for one in [*model.parameters(), *model.buffers()]} == {"penstock"}
    assert all(isinstance(one, nn.Parameter) and one.is_leaf for one in before)


def test_gradients_move_with_their_parameters():
    model = nn.Linear(3, 2)
    model(torch.ones(4, 3)).sum().backward()
    before = [one.grad.clone() for one in model.parameters()]
    model.to("penstock")
    assert [one.grad.device.type for one in model.parameters()] == ["penstock"] * 2
    for one, other in zip(model.parameters(), before, strict=True):
        assert torch.equal(one.grad.cpu(), other)
    model.cpu()
    assert [one.grad.device.type for one in model.parameters()] == ["cpu"] * 2


def test_a_model_returns_to_the_cpu_with_what_it_has_learnt():
    def run(device):
        # In float64: these gradients are differences of what is nearly equal.
        model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).double().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(drawn(device, 14, 5).double()).square().sum().backward()
        optimizer.step()
        model.cpu()
        optimizer.zero_grad()
        model(drawn(torch.device("cpu"), 14, 5).double()).square().sum().backward()
        optimizer.step()
        return dict(model.state_dict())

    on_both(run)


def test_a_deep_copy_has_its_own_content_and_its_own_ties():
    model = models.Gpt(97, 32, 16, 1).to("penstock")
    copied = copy.deepcopy(model)
    assert copied.head.weight is copied.words.weight
    with torch.no_grad():
        copied.words.weight.zero_()
    assert model.words.weight.abs().sum().item() > 0


def test_a_deep_copy_of_views_shares_as_the_originals_do():
    whole = torch.arange(6.0, device="penstock")
    copied, view = copy.deepcopy([whole, whole[2:4]])
    view.fill_(9)
    assert copied.tolist() == [0, 1, 9, 9, 4, 5]
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]
    assert copy.copy(whole).data_ptr() == whole.data_ptr()


def test_a_deep_copy_of_an_optimizer_works_on():
    model = nn.Linear(3, 2).to("penstock")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3, device="penstock")).sum().backward()
    optimizer.step()
    model, optimizer = copy.deepcopy((model, optimizer))
    before = model.weight.detach().clone()
    model(torch.ones(4, 3, device="penstock")).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight.detach(), before)
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_state_dicts_load_across_devices():
    own, moved = nn.Linear(3, 2), nn.Linear(3, 2).to("penstock")
    weight = moved.weight
    moved.load_state_dict(own.state_dict())
    assert moved.weight is weight
    assert torch.equal(weight.cpu(), own.weight)
    own.bias.data.zero_()
    moved.bias.data.fill_(4)
    own.load_state_dict(moved.state_dict())
    assert own.bias.tolist() == [4, 4]
    other = nn.Linear(3, 2, device="meta")
    other.load_state_dict(moved.state_dict(), assign=True)
    assert other.bias.device.type == "penstock"


def test_a_model_is_made_on_the_device():
    with torch.device("penstock"):
        model, given = nn.Linear(3, 2), torch.ones(4, 3)
        assert torch.tensor([1.0]).device.type == "penstock"
    assert {one.device.type for one in (*model.parameters(), given)} == {"penstock"}
    torch.set_default_device("penstock")
    try:
        other = nn.LSTM(3, 2)
        assert torch.zeros(3).device.type == "penstock"
        assert torch.arange(3).sum().item() == 3
    finally:
        torch.set_default_device(None)
    assert {one.device.type for one in other.parameters()} == {"penstock"}
    assert torch.zeros(3).device.type == "cpu"
    empty = nn.Linear(3, 2, device="meta").to_empty(device="penstock")
    nn.init.ones_(empty.weight)
    assert empty.weight.sum().item() == 6
    assert nn.utils.skip_init(nn.Linear, 3, 2, device="penstock").weight.device.type == "penstock"


def test_a_parameter_is_made_of_a_tensor_of_the_device():
    given = torch.ones(3, device="penstock")
    one = nn.Parameter(given)
    assert one.data_ptr() == given.data_ptr()
    assert one.is_leaf
    assert one.requires_grad
    buffered = nn.Module()
    buffered.register_buffer("mean", torch.zeros(2))
    assert buffered.to("penstock").mean.device.type == "penstock"
    lazy = nn.LazyLinear(2).to("penstock")
    lazy(torch.ones(4, 3, device="penstock")).sum().backward()
    assert lazy.weight.grad.device.type == "penstock"


@pytest.mark.parametrize("dtype", [
    torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool,
    torch.complex64, torch.float8_e4m3fn,
])  # fmt: skip
def test_content_moves_unchanged_whatever_its_type(dtype):
    given = (torch.randn(14, 6) * 3).to(dtype)
    moved = given.to("penstock")
    assert moved.dtype is dtype
    bits = torch.uint8 if dtype.itemsize == 1 else dtype
    assert torch.equal(moved.cpu().view(bits), given.view(bits))
    if not dtype.is_complex:
        assert torch.equal(moved.float().cpu(), given.float())


@pytest.mark.parametrize("name", ["transposed", "channels_last", "expanded", "strided", "empty"])
def test_content_moves_unchanged_however_it_lies(name):
    given = {
        "transposed": torch.randn(4, 5).t(),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.randn(1, 5).expand(3, 5),
        "strided": torch.randn(9, 8)[::2, 1::3],
        "empty": torch.randn(0, 4),
    }[name]
    moved = given.to("penstock")
    assert torch.equal(moved.cpu(), given)
    if name == "channels_last":
        assert moved.is_contiguous(memory_format=torch.channels_last)
        assert moved.cpu().stride() == given.stride()
    assert moved.tolist() == given.tolist()
    assert torch.equal(torch.empty_like(given).copy_(moved), given)


def test_models_in_channels_last_compute_as_on_the_cpu():
    def run(device):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        model = model.to(device, memory_format=torch.channels_last)
        given = drawn(device, 14, 3, 8, 8).to(memory_format=torch.channels_last)
        out = model(given)
        out.sum().backward()
        return out, model[0].weight.grad

    on_both(run, rtol=1e-4, atol=1e-5)


def test_packed_sequences_and_nested_containers_move():
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3), [5, 3]).to("penstock")
    assert packed.data.device.type == "penstock"
    padded, lengths = nn.utils.rnn.pad_packed_sequence(nn.LSTM(3, 4).to("penstock")(packed)[0])
    assert padded.shape == (5, 2, 4)
    assert lengths.tolist() == [5, 3]


def test_a_model_that_a_graph_refers_to_says_why_it_cannot_move():
    model = nn.Conv2d(3, 4, 3).to("penstock")
    out = model(torch.ones(2, 3, 8, 8, device="penstock"))
    with pytest.raises(RuntimeError, match=r"delete that first, or evaluate under torch\.no_grad"):
        nn.Sequential(model).cpu()
    out.sum().backward()
    assert model.cpu().weight.device.type == "cpu"
