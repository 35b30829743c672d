"""`penstock train run` with programs in JAX: as in PyTorch, as on one device, also over losses."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.training.conftest import PROGRAMS, penstock, python
from tests.training.programs.jax_cases import CASES
from tests.training.test_training import workers_of

from penstock.training.run import runs

CARDS = "cpu=1,cpu=2"


def plain(*command):
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_cards(*command, cards=CARDS, warnings="ignore"):
    done = penstock(
        "train", "run", "--cards", cards, "--", sys.executable, "-W", warnings, *command,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text):
    return np.array([float(line) for line in text.splitlines() if line[:1].isdigit()])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_same_job_has_the_same_losses_in_torch_and_in_jax(optimizer):
    split = PROGRAMS / "split_all.py"
    by_torch = losses(on_cards(split, PROGRAMS / "mlp_torch.py", optimizer))
    by_jax = losses(on_cards(split, PROGRAMS / "mlp_jax.py", optimizer))
    assert len(by_jax) == 100
    assert by_jax[-1] < by_jax[0] / 3
    np.testing.assert_allclose(by_jax, by_torch, rtol=0, atol=1e-4)
    np.testing.assert_allclose(
        by_jax, losses(plain(PROGRAMS / "mlp_jax.py", optimizer)), rtol=0, atol=1e-5
    )


def test_a_jax_program_works_on_all_its_cards_and_goes_on_when_one_is_lost():
    expected = losses(plain(PROGRAMS / "mlp_jax.py"))
    command = [
        sys.executable,
        "-W",
        "ignore",
        PROGRAMS / "split_all.py",
        PROGRAMS / "mlp_jax.py",
        "slowly",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "train", "run", "--cards", CARDS, "--", *command],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        lines = [process.stdout.readline() for _ in range(30)]
        (program,) = programs()
        work = [card["work"] for card in program["cards"]]
        (run,) = runs()
        os.kill(workers_of(run.state().pid)[1], signal.SIGKILL)
        lines += process.stdout.read().splitlines()
        assert process.wait(30) == 0, lines
    assert program["steps"] > 0
    assert min(work) > 0
    np.testing.assert_allclose(
        losses("\n".join(map(str.strip, lines))), expected, rtol=0, atol=1e-5
    )
    assert [one.event for one in run.events()] == ["started", "card-lost", "succeeded"]


def programs():
    """What is published of the run's program, once all its cards have worked."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        told = json.loads(penstock("train", "status", "run-1", "-o", "json").stdout)["programs"]
        if told and told[0]["steps"]:
            return told
    raise AssertionError(told)


def test_what_jax_computes_is_the_same_on_unlike_cards(tmp_path):
    files = tmp_path / "plain.npz", tmp_path / "cards.npz"
    plain(PROGRAMS / "jax_cases.py", files[0])
    split = PROGRAMS / "split_all.py"
    on_cards(split, PROGRAMS / "jax_cases.py", files[1], cards="cpu=1,cpu=2,cpu=4")
    expected, given = map(np.load, files)
    assert set(given) == set(expected)
    assert {key.rpartition("|")[0] for key in given} == {name.replace("/", "|") for name in CASES}
    assert [key for key in expected if not is_same(key, given[key], expected[key])] == []


def is_same(key, own, value):
    if (own.dtype, own.shape) != (value.dtype, value.shape):
        return False
    if value.dtype.kind != "f":
        return np.array_equal(own, value)
    return np.allclose(own, value, 1e-2 if "half" in key else 3e-5, 2e-5, equal_nan=True)


def test_a_jax_program_that_has_no_cards_pays_nothing():
    text = (
        "import sys, jax; print(jax.jit(lambda x: x + 1)(1.0)); "
        "print([one for one in sys.modules if one == 'torch' or 'frameworks' in one])"
    )
    assert plain("-c", text).split() == ["2.0", "[]"]


ALL = """
import functools, jax, jax.numpy as jnp, numpy as np
from jax import jit
x = np.ones((6, 4), "f")
decorated = jit(lambda x: x + 1)
static = functools.partial(jax.jit, static_argnums=1)(lambda x, n: x * n)
donated = jax.jit(lambda x: x * 2, donate_argnums=0)
decorated(x)  # JAX starts here
print(type(decorated(x)).__name__, type(static(x, 3)).__name__, type(donated(x)).__name__)
first = donated(x)
print(float(donated(first).sum()), first.is_deleted())
print(jax.jit(lambda x: (x @ x.T).sum())(x) / 2, jax.default_backend())
"""


def test_functions_jitted_in_any_way_are_computed_by_the_cards():
    told = on_cards("-c", ALL).splitlines()
    assert told == ["CardArray CardArray CardArray", "96.0 True", "72.0 cpu"]


def test_a_program_that_jits_nothing_is_told_at_its_end():
    text = "import jax.numpy as jnp; print(jnp.ones(3).sum())"
    told = on_cards("-c", text, warnings="default")
    assert told.splitlines()[0] == "3.0"
    assert "JAX computed on the CPU, and this program's cards did nothing" in told


def test_the_adapter_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("PENSTOCK_CARD_JAX", "off")
    text = "import jax; f = jax.jit(lambda x: x + 1); f(1.0); print(type(f(1.0)).__name__)"
    assert on_cards("-c", text).splitlines()[-1] == "ArrayImpl"


def test_what_the_cards_cannot_compute_is_refused_with_its_name():
    text = (
        "import jax, jax.numpy as jnp, numpy as np\njnp.ones(1)\n"
        "def step(x):\n    return jax.lax.linalg.svd(x)[1]\njax.jit(step)(np.eye(3, dtype='f'))\n"
    )
    done = penstock("train", "run", "--cards", CARDS, "--", *python(text))
    assert done.returncode == 1
    assert "the cards cannot compute step: JAX's primitive 'svd' has no rule" in done.stdout
    assert "PENSTOCK_CARD_JAX_UNKNOWN=cpu" in done.stdout
