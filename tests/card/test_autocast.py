"""Autocast and the scaling of gradients: the types and the numbers that the CPU gives."""

import pytest
import torch
from tests.card.support.comparison import drawn, on_both
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("eager_splits")

HERE = torch.device("penstock")


def _autocast(device, dtype=torch.bfloat16, **options):
    return torch.autocast(device.type, dtype=dtype, **options)


def test_products_are_of_the_lower_precision_and_losses_of_float32():
    with _autocast(HERE):
        given = torch.randn(4, 6, device=HERE)
        low = nn.Linear(6, 5).to(HERE)(given)
        assert low.dtype is torch.bfloat16
        assert nn.Conv1d(6, 2, 1).to(HERE)(given.t()[None]).dtype is torch.bfloat16
        assert functional.softmax(low, 1).dtype is torch.float32
        assert functional.mse_loss(low, low).dtype is torch.float32
        assert functional.layer_norm(low, (5,)).dtype is torch.float32
        assert (low + torch.ones(5, device=HERE)).dtype is torch.float32
        assert torch.cat([low, given[:, :5]]).dtype is torch.float32
        assert low.relu().dtype is torch.bfloat16
        assert (given.double() @ given.double().t()).dtype is torch.float64
        with _autocast(HERE, enabled=False):
            assert (given @ given.t()).dtype is torch.float32
    assert (given @ given.t()).dtype is torch.float32
    with _autocast(HERE, torch.float16):
        assert (given @ given.t()).dtype is torch.float16


def test_the_device_answers_what_torch_asks_about_autocast():
    assert torch.amp.is_autocast_available("penstock")
    assert not torch.is_autocast_enabled("penstock")
    torch.set_autocast_dtype("penstock", torch.float16)
    with torch.autocast("penstock"):
        assert torch.is_autocast_enabled("penstock")
        assert torch.get_autocast_dtype("penstock") is torch.float16
    torch.set_autocast_dtype("penstock", torch.bfloat16)
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("penstock", torch.int8):
        assert not torch.is_autocast_enabled("penstock")


class _Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, given):
        words = self.norm(self.conv(given)).relu().flatten(2).transpose(1, 2)
        return self.head(self.lstm(self.attention(words))[0][:, -1])


def test_a_training_step_is_as_near_to_float32_as_that_of_the_cpu():
    target = torch.randint(0, 3, (14,))

    def run(device):
        torch.manual_seed(7)
        model, given = _Network().to(device), drawn(device, 14, 3, 6, 6)
        with _autocast(device):
            loss = functional.cross_entropy(model(given), target.to(device))
        loss.backward()
        assert {one.grad.dtype for one in model.parameters()} == {torch.float32}
        return loss, model.head.weight.grad, model.conv.weight.grad

    on_both(run, rtol=0.1, atol=0.02)


def test_weights_are_cast_once_and_gradients_reach_them():
    weight = torch.randn(6, 5, device=HERE, requires_grad=True)
    given = torch.randn(4, 6, device=HERE)
    with _autocast(HERE):
        (given @ weight + (given @ weight).sin()).sum().backward()
    assert weight.grad.dtype is torch.float32
    assert weight.grad.abs().sum().item() > 0


def test_functions_of_the_programs_own_follow_autocast():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="penstock", cast_inputs=torch.float32)
        def forward(ctx, one, other):
            ctx.save_for_backward(one, other)
            return one @ other

        @staticmethod
        @torch.amp.custom_bwd(device_type="penstock")
        def backward(ctx, slope):
            one, other = ctx.saved_tensors
            return slope @ other.t(), one.t() @ slope

    one = torch.randn(3, 4, device=HERE, dtype=torch.bfloat16, requires_grad=True)
    with _autocast(HERE):
        out = Product.apply(one, torch.randn(4, 2, device=HERE))
    assert out.dtype is torch.float32
    out.sum().backward()
    assert one.grad.dtype is torch.bfloat16


@pytest.mark.parametrize("foreach", [False, True])
def test_a_gradient_scaler_scales_skips_and_clips(foreach):
    torch.manual_seed(7)
    own = nn.Linear(4, 2)
    model = nn.Linear(4, 2).to(HERE)
    model.load_state_dict(own.state_dict())
    given = torch.randn(14, 4)
    scales = []
    for one, data in ((own, given), (model, given.to(HERE))):
        scaler = torch.amp.GradScaler(data.device.type, init_scale=1024.0, growth_interval=2)
        optimizer = torch.optim.SGD(one.parameters(), 0.1, foreach=foreach)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(one(data).square().mean()).backward()
            if step == 1:
                one.weight.grad[0, 0] = float("inf")
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(one.parameters(), 0.3)
            before = one.weight.detach().clone()
            scaler.step(optimizer)
            assert torch.equal(before, one.weight.detach()) == (step == 1)
            scaler.update()
        scales.append(scaler.get_scale())
        assert scaler.state_dict()["scale"] == scales[-1]
    assert scales == [1024.0, 1024.0]
    torch.testing.assert_close(model.weight.cpu(), own.weight, rtol=1e-5, atol=1e-6)


def test_models_of_lower_precision_train():
    def run(device):
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).to(device).bfloat16()
        model(drawn(device, 14, 6).bfloat16()).square().mean().backward()
        return model[0].weight.grad.float()

    on_both(run, rtol=0.05, atol=0.01)
