"""Random numbers on the device: reproducible, of the asked distribution, not those of the CPU."""

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("eager_splits")
SIZE = (700, 30)


def test_a_seed_gives_the_same_numbers_again():
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(
            (
                torch.randn(SIZE, device="penstock"),
                torch.randperm(9, device="penstock"),
                torch.rand(3, device="penstock"),
                torch.randint(9, (4,), device="penstock"),
            )
        )
    for one, other in zip(*drawn, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(drawn[0][0], torch.randn(SIZE, device="penstock"))


def test_a_state_is_kept_and_set():
    state = torch.penstock.get_rng_state()
    one = torch.rand(5, device="penstock")
    torch.penstock.set_rng_state(state)
    assert torch.equal(one, torch.rand(5, device="penstock"))
    with torch.random.fork_rng(devices=[0], device_type="penstock"):
        first = torch.rand(5, device="penstock")
    assert torch.equal(first, torch.rand(5, device="penstock"))


def test_the_cpus_generator_is_not_touched():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    torch.rand(3, device="penstock")
    functional.dropout(torch.ones(9, device="penstock"))
    assert torch.equal(torch.rand(3), wanted)


def test_a_generator_of_the_device_has_its_own_numbers():
    generator = torch.Generator(device="penstock").manual_seed(3)
    assert generator.device == torch.device("penstock", 0)
    one = torch.randn(4, generator=generator, device="penstock")
    state = generator.get_state()
    two = torch.empty(4, device="penstock").uniform_(generator=generator)
    generator.set_state(state)
    assert torch.equal(two, torch.empty(4, device="penstock").uniform_(generator=generator))
    again = torch.Generator("penstock")
    again.manual_seed(3)
    assert again.initial_seed() == 3
    assert torch.equal(one, torch.randn(4, generator=again, device="penstock"))
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert torch.Generator().device.type == "cpu"
    assert isinstance(torch.default_generator, torch.Generator)


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'penstock' device type for generator"):
        torch.rand(3, device="penstock", generator=torch.Generator())


@pytest.mark.parametrize("name", ["uniform", "normal", "exponential", "bernoulli", "integers",
                                  "poisson", "half"])  # fmt: skip
def test_numbers_have_the_mean_and_the_deviation_that_they_should(name):
    make, mean, deviation = {
        "uniform": (lambda: torch.rand(SIZE, device="penstock"), 0.5, 12**-0.5),
        "normal": (lambda: torch.randn(SIZE, device="penstock"), 0, 1),
        "exponential": (lambda: torch.empty(SIZE, device="penstock").exponential_(2), 0.5, 0.5),
        "bernoulli": (lambda: torch.full(SIZE, 0.3, device="penstock").bernoulli(), 0.3, 0.4583),
        "integers": (lambda: torch.randint(0, 5, SIZE, device="penstock").float(), 2, 2**0.5),
        "poisson": (lambda: torch.poisson(torch.full(SIZE, 4.0, device="penstock")), 4, 2),
        "half": (lambda: torch.randn(SIZE, device="penstock", dtype=torch.bfloat16).float(), 0, 1),
    }[name]
    drawn = make().cpu()
    assert drawn.mean().item() == pytest.approx(mean, abs=0.06)
    assert drawn.std().item() == pytest.approx(deviation, rel=0.05)
    # No card repeats another's numbers.
    assert len({tuple(row) for row in drawn.tolist()}) == SIZE[0]


def test_dropout_leaves_its_share_and_scales_it_on_every_card():
    given = torch.ones(SIZE, device="penstock") @ torch.eye(30, device="penstock")
    given.requires_grad_()
    out = functional.dropout(given, 0.25)
    out.sum().backward()
    assert torch.equal(given.grad, out)
    for rows in out.detach().cpu().split(100):
        assert rows.unique().tolist() == pytest.approx([0, 4 / 3])
        assert (rows == 0).float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert torch.equal(functional.dropout(given, 0.25, training=False), given)


def test_permutations_and_samples_are_such():
    assert sorted(torch.randperm(50, device="penstock").tolist()) == list(range(50))
    weights = torch.tensor([0.0, 1.0, 3.0], device="penstock")
    counts = weights.multinomial(4000, replacement=True).bincount(minlength=3).tolist()
    assert counts[0] == 0
    assert counts[2] / counts[1] == pytest.approx(3, rel=0.2)
    assert sorted(weights[1:].multinomial(2).tolist()) == [0, 1]


def test_distributions_draw_and_differentiate():
    mean = torch.zeros(SIZE, device="penstock", requires_grad=True)
    normal = torch.distributions.Normal(mean, 1.0)
    normal.rsample().sum().backward()
    assert mean.grad.sum().item() == 21000
    chosen = torch.distributions.Categorical(logits=torch.zeros(14, 5, device="penstock")).sample()
    assert chosen.device.type == "penstock"
    assert set(chosen.tolist()) <= set(range(5))
