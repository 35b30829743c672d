"""torch.compile: graphs of the device give what eager programs give on the CPU."""

import pytest
import torch
from tests.card.support import models
from tests.card.support.comparison import drawn, on_both
from torch import nn
from torch.nn import functional

pytestmark = [
    pytest.mark.usefixtures("eager_splits"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, many
]


def _compiled_here(function, device, **options):
    return torch.compile(function, **options) if device.type == "penstock" else function


def _network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                         nn.Linear(144, 5))  # fmt: skip


@pytest.mark.parametrize("options", [
    {}, {"mode": "reduce-overhead"}, {"fullgraph": True}, {"dynamic": True},
    {"backend": "aot_eager"}, {"backend": "eager"},
], ids=str)  # fmt: skip
def test_a_compiled_model_trains_as_on_the_cpu(options):
    torch._dynamo.reset()

    def run(device):
        model = _network().to(device)
        compiled = _compiled_here(model, device, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = compiled(drawn(device, 14, 3, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, dict(model.named_parameters())

    on_both(run, rtol=1e-4, atol=1e-5)


def test_a_compiled_transformer_with_tied_weights_trains_as_on_the_cpu():
    torch._dynamo.reset()
    words = torch.randint(0, 97, (14, 16))

    def run(device):
        model = models.Gpt(97, 32, 16, 1).to(device)
        compiled = _compiled_here(model, device)
        loss = models.words_loss(compiled(words.to(device)), words.roll(1, 1).to(device))
        loss.backward()
        return loss, model.words.weight.grad

    on_both(run, rtol=1e-4, atol=1e-5)


def test_a_compiled_function_changes_makes_and_breaks_as_on_the_cpu():
    torch._dynamo.reset()

    def run(device):
        def function(given):
            made = torch.arange(6, device=device, dtype=torch.float32)
            given.mul_(2)
            if given.sum().item() > 1e6:  # the graph breaks here
                return given
            return given[:, 1:4].contiguous() + made[:3], given.t() @ given

        given = drawn(device, 14, 6)
        return _compiled_here(function, device)(given), given

    on_both(run)


def test_a_compiled_optimizer_steps_as_on_the_cpu():
    torch._dynamo.reset()

    def run(device):
        model = nn.Linear(6, 3).to(device)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        step = _compiled_here(optimizer.step, device)
        for _ in range(3):
            model(drawn(device, 14, 6)).square().sum().backward()
            step()
        return dict(model.named_parameters())

    on_both(run, rtol=1e-4, atol=1e-5)


def test_dropout_in_a_compiled_model_has_one_mask_for_both_directions():
    torch._dynamo.reset()
    given = torch.ones(14, 50, device="penstock", requires_grad=True)
    out = torch.compile(lambda x: functional.dropout(x, 0.5) * 3)(given)
    out.sum().backward()
    assert torch.equal(out, given.grad)
    assert 0.3 < (out == 0).float().mean().item() < 0.7


def test_autocast_in_a_compiled_function_is_kept():
    torch._dynamo.reset()

    @torch.compile
    def function(given):
        with torch.autocast("penstock", torch.bfloat16):
            return given @ given.t()

    assert function(torch.ones(4, 6, device="penstock")).dtype is torch.bfloat16


def test_programs_are_exported():
    given = torch.randn(14, 6).to("penstock")
    model = nn.Linear(6, 3).to("penstock")
    exported = torch.export.export(model, (given,))
    torch.testing.assert_close(exported.module()(given), model(given))
