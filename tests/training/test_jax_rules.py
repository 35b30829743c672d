"""Each of JAX's operations is computed by torch as by JAX: on the CPU, without cards."""

import jax
import numpy as np
import pytest
from tests.training.programs.jax_cases import CASES, flat

from penstock.card.frameworks import jax as adapter

pytestmark = pytest.mark.filterwarnings("ignore::penstock.card.PenstockCardWarning")


@pytest.fixture(autouse=True)
def without_cards(monkeypatch):
    monkeypatch.setattr(adapter, "device", "cpu")


def by_rules(function, args):
    """What the rules make of a function."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    values = [adapter._entered(*both) for both in zip(args, closed.in_avals, strict=True)]
    results = [adapter._here(one) for one in adapter._Plan(closed).run(values)]
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def assert_same(name, given, expected):
    given, expected = flat(name, given), flat(name, expected)
    assert given.keys() == expected.keys()
    for key, value in expected.items():
        own = given[key]
        assert own.dtype == value.dtype, key
        assert own.shape == value.shape, key
        if value.dtype.kind == "f":
            relative = 1e-2 if "half" in name else 3e-5
            np.testing.assert_allclose(own, value, relative, 2e-5, err_msg=key)
        else:
            np.testing.assert_array_equal(own, value, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_an_operation_gives_what_it_gives_in_jax(name):
    function, args = CASES[name]
    assert_same(name, by_rules(function, args), jax.jit(lambda *given: function(*given))(*args))
