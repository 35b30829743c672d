"""Parameters, gradients and optimizer state in parts: models larger than any one card train."""

import copy
import io

import pytest
import torch
from tests.card.support import models
from tests.card.support.sessions import session_of
from torch import nn
from torch.nn import functional

from penstock.card.card_list import parse_cards
from penstock.card.device.tensors import buffer_of
from penstock.card.layout import Shard
from penstock.card.names import SHARDING_VARIABLE
from penstock.model import PenstockError

STEPS, BATCH = 3, 20
WIDTH, LAYERS = 512, 8
LARGEST = 43 << 20  # bytes of the largest card; the model below needs 1.5 times as much
LIMITED = f"cpu=1@{LARGEST * 2 // 3},cpu=2@{LARGEST},cpu=2@{LARGEST}"
FORMS = {"foreach": {}, "loop": {"foreach": False}, "fused": {"fused": True}}


def large():
    """A model of 16 MiB; with gradients and two moments it needs 64 MiB."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return nn.Sequential(*(one for layer in layers for one in (layer, nn.Tanh()))).double()


def small():
    """A model whose matrices are large enough to be worth parts, and whose vectors are not."""
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64)).double()


def batch(width=64):
    """What a model is given, and what it is to say."""
    return torch.randn(2, BATCH, width, dtype=torch.float64).unbind()


def train(model, optimizer, given, target, loss_of=functional.mse_loss, clip=None):
    """The losses of some steps, and the norms of the gradients if they are clipped."""
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(given), target)
        loss.backward()
        if clip is not None:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), **clip).item())
        optimizer.step()
        losses.append(loss.item())
    return losses


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), 1e-3, **options)


def assert_same(moved, own):
    for (name, one), other in zip(moved.named_parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(
            one.detach().cpu(), other.detach(), rtol=1e-6, atol=1e-9,
            msg=lambda text, part=name: f"{part}: {text}",
        )  # fmt: skip


def _trained_on_cards(model, given, target):
    moved = model.to("penstock")
    train(moved, adamw(moved), given.to("penstock"), target.to("penstock"))


def is_sharded(tensor):
    return isinstance(buffer_of(tensor).layout, Shard)


def matrices(tensors):
    return [one for one in tensors if one.dim() > 1]


@pytest.fixture(scope="module")
def three():
    """Three unlike cards with sharding on."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(SHARDING_VARIABLE, "on")
        opened = session_of("cpu=1,cpu=2,cpu=2")
        session = opened.__enter__()
    yield session
    opened.__exit__(None, None, None)


@pytest.fixture
def sharding(three):
    torch.manual_seed(5)
    return three


# A model larger than a card


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_needs_half_as_much_again_as_the_largest_card_trains(form):
    torch.manual_seed(1)
    own = large()
    bytes_of_parameters = sum(one.numel() * one.element_size() for one in own.parameters())
    assert 4 * bytes_of_parameters > 1.49 * LARGEST
    given, target = batch(WIDTH)
    with session_of(LIMITED) as session:
        moved = copy.deepcopy(own).to("penstock")
        assert session.sharding.is_on
        found = train(moved, adamw(moved, **FORMS[form]), given.to("penstock"),
                      target.to("penstock"))  # fmt: skip
        assert found == pytest.approx(train(own, adamw(own, **FORMS[form]), given, target), 1e-9)
        assert_same(moved, own)
        memory = session.statistics()
        assert all(one.peak_bytes < one.total_bytes for one in memory)


def test_the_same_model_without_sharding_is_an_error_that_names_card_and_memory(monkeypatch):
    monkeypatch.setenv(SHARDING_VARIABLE, "off")
    given, target = batch(WIDTH)
    wanted = r"failed on card \d: out of memory"
    with session_of(LIMITED), pytest.raises(torch.OutOfMemoryError, match=wanted):
        _trained_on_cards(large(), given, target)


def test_a_step_that_needs_too_much_memory_is_an_error_and_the_next_one_is_right():
    torch.manual_seed(1)
    own, (given, target) = large(), batch(WIDTH)
    with session_of(LIMITED) as session:
        moved = copy.deepcopy(own).to("penstock")
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            moved(given.repeat(2000, 1).to("penstock")).sum().item()
        session.synchronize()
        found = train(moved, adamw(moved), given.to("penstock"), target.to("penstock"))
        assert found == pytest.approx(train(own, adamw(own), given, target), 1e-9)
        assert_same(moved, own)


# Training as on the CPU


def _program(name):
    images, words = torch.randn(BATCH, 3, 32, 32).double(), torch.randint(0, 97, (BATCH, 16))
    return {
        "resnet": (models.resnet18(16).double(), images, torch.randint(0, 10, (BATCH,)),
                   functional.cross_entropy),
        "gpt": (models.Gpt(97, 64, 16, 2).double(), words, words.roll(1, 1), models.words_loss),
    }[name]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["resnet", "gpt"])
def test_losses_and_parameters_are_those_of_the_cpu(sharding, name, form):
    own, given, target, loss_of = _program(name)
    moved = copy.deepcopy(own).to("penstock")
    assert any(is_sharded(one) for one in moved.parameters())
    optimizer = adamw(moved, **FORMS[form])
    found = train(moved, optimizer, given.to("penstock"), target.to("penstock"), loss_of)
    wanted = train(own, adamw(own, **FORMS[form]), given, target, loss_of)
    assert found == pytest.approx(wanted, rel=1e-9)
    assert_same(moved, own)


def test_gradients_and_optimizer_state_lie_as_their_parameter(sharding):
    model = small().to("penstock")
    optimizer = adamw(model)
    train(model, optimizer, *(one.to("penstock") for one in batch()))
    for one in matrices(model.parameters()):
        state = optimizer.state[one]
        layouts = {buffer_of(each).layout for each in (one, state["exp_avg"], state["exp_avg_sq"])}
        assert len(layouts) == 1
        assert layouts == {buffer_of(one.grad).layout.settled}
        assert is_sharded(one)


def test_the_batch_is_split_although_weights_are(sharding):
    model = small().to("penstock")
    before = sharding.planner.gathered.total()
    assert not is_sharded(model(torch.randn(BATCH, 64).double().to("penstock")))
    assert sharding.planner.gathered.total() == before


@pytest.mark.parametrize("order", [0, 1, 2, float("inf")])
@pytest.mark.parametrize("foreach", [False, True])
def test_norms_of_gradients_are_those_of_the_cpu(sharding, order, foreach):
    own, (given, target) = small(), batch()
    moved = copy.deepcopy(own).to("penstock")
    norms = []
    for model, *pair in (
        (own, given, target),
        (moved, given.to("penstock"), target.to("penstock")),
    ):
        functional.mse_loss(model(pair[0]), pair[1]).backward()
        grads = [one.grad for one in model.parameters()]
        norms.append(nn.utils.get_total_norm(grads, order, foreach=foreach).item())
    assert norms[1] == pytest.approx(norms[0], rel=1e-12)


@pytest.mark.parametrize("foreach", [False, True])
def test_training_with_clipped_gradients_is_that_of_the_cpu(sharding, foreach):
    own, (given, target) = small(), batch()
    moved = copy.deepcopy(own).to("penstock")
    clip = {"max_norm": 0.01, "foreach": foreach}
    found = train(moved, adamw(moved), given.to("penstock"), target.to("penstock"), clip=clip)
    assert found == pytest.approx(train(own, adamw(own), given, target, clip=clip), rel=1e-9)
    assert_same(moved, own)


@pytest.mark.parametrize("to_none", [False, True])
def test_gradients_of_several_batches_are_added_up(sharding, to_none):
    own, (given, target) = small(), batch()
    moved = copy.deepcopy(own).to("penstock")
    for model, one, wanted in ((own, given, target),
                               (moved, given.to("penstock"), target.to("penstock"))):  # fmt: skip
        optimizer = adamw(model)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=to_none)
            for _ in range(3):
                functional.mse_loss(model(one), wanted).backward()
            optimizer.step()
    assert_same(moved, own)
    assert all(buffer_of(one.grad).layout.settled is buffer_of(one).layout
               for one in matrices(moved.parameters()))  # fmt: skip


# What programs do with parameters


def test_a_parameter_can_be_changed_and_copied_as_any_tensor(sharding):
    own = small()
    moved = copy.deepcopy(own).to("penstock")
    for model in (own, moved):
        weight = model[0].weight
        with torch.no_grad():
            weight[3].fill_(2)
            weight[:, 5] *= 3
            weight.view(-1)[10:20].add_(1)
            weight.t().mul_(0.5)
            weight.data.clamp_(-0.5, 0.75)
            weight[1:70].copy_(weight[2:71].clone())
    assert_same(moved, own)
    copied = copy.deepcopy(moved)
    with torch.no_grad():
        moved[0].weight.zero_()
    assert_same(copied, own)
    assert is_sharded(copied[0].weight)
    assert is_sharded(moved[0].weight)


def test_a_program_goes_on_from_what_it_has_saved(sharding):
    own, (given, target) = small(), batch()
    moved = copy.deepcopy(own).to("penstock")
    on_cards = given.to("penstock"), target.to("penstock")
    first, reference = adamw(moved), adamw(own)
    train(moved, first, *on_cards)
    train(own, reference, given, target)
    file = io.BytesIO()
    torch.save({"model": moved.state_dict(), "optimizer": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, map_location="cpu")
    again = small().to("penstock")
    again.load_state_dict(saved["model"])
    second = adamw(again)
    second.load_state_dict(saved["optimizer"])
    assert all(is_sharded(second.state[one]["exp_avg"]) for one in matrices(again.parameters()))
    assert train(again, second, *on_cards) == pytest.approx(
        train(own, reference, given, target), rel=1e-9
    )
    assert_same(again, own)


def test_modules_made_on_the_device_are_sharded(sharding):
    model = nn.Sequential(nn.Embedding(200, 64, padding_idx=3, device="penstock"),
                          nn.Linear(64, 96, device="penstock"))  # fmt: skip
    weight = model[0].weight
    assert is_sharded(weight)
    assert is_sharded(model[1].weight)
    assert weight[3].abs().sum().item() == 0
    assert weight.detach().cpu().std().item() == pytest.approx(1, rel=0.1)


def test_training_goes_on_after_moves_to_other_cards(sharding):
    own, (given, target) = small(), batch()
    moved = copy.deepcopy(own).to("penstock")
    optimizer, reference = adamw(moved), adamw(own)
    for cards in ("cpu=1,cpu=1", "cpu=1", "cpu=1,cpu=2,cpu=3,cpu=1"):
        found = train(moved, optimizer, given.to("penstock"), target.to("penstock"))
        assert found == pytest.approx(train(own, reference, given, target), rel=1e-9)
        sharding.replace_cards(parse_cards(cards))
        assert all(is_sharded(one) == (cards != "cpu=1") for one in matrices(moved.parameters()))
    found = train(moved, optimizer, given.to("penstock"), target.to("penstock"))
    assert found == pytest.approx(train(own, reference, given, target), rel=1e-9)
    assert_same(moved, own)
    assert all(is_sharded(optimizer.state[one]["exp_avg"]) for one in matrices(moved.parameters()))


def test_sums_on_their_way_are_added_up_before_a_gradient_is_read_or_written(sharding, monkeypatch):
    from penstock.card.device import reductions

    monkeypatch.setattr(reductions, "BUCKET_BYTES", 1)
    own, (given, target) = small(), batch()
    moved = copy.deepcopy(own).to("penstock")
    for model, one, wanted in ((own, given, target),
                               (moved, given.to("penstock"), target.to("penstock"))):  # fmt: skip
        functional.mse_loss(model(one), wanted).backward()
    for one, other in zip(moved.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad)
    moved[0].weight.grad = None
    functional.mse_loss(moved(given.to("penstock")), target.to("penstock")).backward()
    moved[0].weight.grad.copy_(torch.ones_like(own[0].weight))
    assert moved[0].weight.grad.sum().item() == own[0].weight.numel()


# When parameters are sharded


def test_parameters_that_every_card_has_room_for_are_whole():
    with session_of("cpu=1,cpu=2") as session:
        model = small().to("penstock")
        assert not any(is_sharded(one) for one in model.parameters())
        assert torch.penstock.get_sharding() == ("auto", False)
        torch.penstock.set_sharding("on")
        assert torch.penstock.get_sharding() == ("on", True)
        assert all(is_sharded(one) for one in matrices(model.parameters()))
        torch.penstock.set_sharding("off")
        assert not is_sharded(small().to("penstock")[0].weight)
        assert session.sharding.mode == "off"


def test_a_mode_that_does_not_exist_is_refused(monkeypatch):
    with session_of("cpu=1,cpu=1"), pytest.raises(ValueError, match="off, auto, on"):
        torch.penstock.set_sharding("maybe")
    monkeypatch.setenv(SHARDING_VARIABLE, "perhaps")
    with pytest.raises(PenstockError, match=SHARDING_VARIABLE), session_of("cpu=1,cpu=1"):
        pass
