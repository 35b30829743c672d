"""A result that is on the cards is an array of JAX in every use; here the cards are torch's CPU."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pjit
from jax.sharding import Mesh, PartitionSpec

from penstock.card.frameworks import jax as adapter
from penstock.card.names import PenstockCardWarning
from penstock.model import PenstockError

X = np.arange(6, dtype="f").reshape(2, 3)
DOUBLE = 2 * X


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(adapter, "device", "cpu")
    monkeypatch.setattr(pjit, "_pjit_call_impl_python", adapter._executed)
    monkeypatch.setattr(adapter, "_warned", set())
    adapter._register_array()
    # What JAX keeps of functions that ran before, it would run again without asking.
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def doubled():
    made = jax.jit(lambda x: x * 2)(X)
    assert type(made) is adapter.CardArray
    return made


def test_it_is_an_array_of_jax_with_the_same_value(doubled):
    assert isinstance(doubled, jax.Array)
    assert (doubled.shape, doubled.dtype, doubled.ndim, doubled.size) == ((2, 3), X.dtype, 2, 6)
    assert doubled.on_device_size_in_bytes() == 24
    assert repr(doubled) == repr(jnp.asarray(DOUBLE))
    assert (str(doubled), doubled.tolist(), len(doubled)) == (str(DOUBLE), DOUBLE.tolist(), 2)
    assert (float(doubled[1, 2]), int(doubled[0, 1]), doubled[1, 1].item()) == (10.0, 2, 8.0)
    assert f"{doubled.sum():.2f}" == "30.00"
    assert not bool(doubled[0, 0])
    assert [1, 2, 3][jax.jit(lambda x: x.argmax() % 3)(X)] == 3
    assert [row.tolist() for row in doubled] == DOUBLE.tolist()
    assert doubled.devices() == {jax.devices()[0]}
    assert doubled.is_fully_addressable
    assert doubled.sharding.device_set == doubled.devices()
    assert len(doubled.addressable_shards) == 1


COPIES = {
    "np.asarray": np.asarray, "device_get": jax.device_get, "device_put": jax.device_put,
    "jnp.asarray": jnp.asarray, "jnp.array": jnp.array, "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),  # noqa: S301 - our own
    "copy": lambda x: x.copy(),
    "block": jax.block_until_ready, "dlpack": np.from_dlpack,
    "compiled": lambda x: jax.jit(lambda y: y).lower(x).compile()(x),
}  # fmt: skip


@pytest.mark.parametrize("way", COPIES)
def test_its_value_can_be_taken_in_any_way(doubled, way):
    np.testing.assert_array_equal(COPIES[way](doubled), DOUBLE)


def without_jit(x):
    with jax.disable_jit():
        return jax.jit(jnp.sin)(x)


EAGER = {
    "operators": lambda x: (x + 1, 1 - x, x / 2, -x, x @ x.T, x > 3, x == x.T.T, x**2, x // 2),
    "numpy's operators": lambda x: X + x,
    "methods": lambda x: (x.T, x.mean(), x.astype("int32"), x.reshape(-1), x.at[0].set(1.0)),
    "indices": lambda x: (x[0], x[:, 1:], x[jnp.array([1, 0])], x[x > 4], x.nonzero()),
    "functions": lambda x: (jnp.stack([x, x]), jnp.where(x > 2, x, 0), jnp.allclose(x, DOUBLE)),
    "derivatives": lambda x: (jax.grad(lambda p: (p**2).sum())(x), jax.vmap(jnp.sum)(x)),
    "what the cards have not": lambda x: (jnp.linalg.svd(x)[1], jnp.abs(jnp.fft.fft(x))),
    "without jit": without_jit,
}


@pytest.mark.parametrize("use", EAGER)
@pytest.mark.filterwarnings("ignore::penstock.card.PenstockCardWarning")
def test_eager_code_takes_it(doubled, use):
    for own, expected in zip(
        jax.tree.leaves(EAGER[use](doubled)),
        jax.tree.leaves(EAGER[use](jnp.asarray(DOUBLE))), strict=True,
    ):  # fmt: skip
        assert own.dtype == expected.dtype
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


def test_eager_operations_on_it_stay_on_the_cards(doubled):
    for one in (doubled + 1, X + doubled, jnp.mean(doubled), doubled[0], doubled.T):
        assert type(one) is adapter.CardArray


def test_jaxs_own_functions_of_other_arrays_are_computed_by_jax():
    assert type(jnp.mean(X)) is not adapter.CardArray
    assert type(jax.random.normal(jax.random.key(0), (3,))) is not adapter.CardArray


def test_a_donated_array_cannot_be_used_again(doubled):
    jax.jit(lambda x: x + 1, donate_argnums=0)(doubled)
    assert doubled.is_deleted()
    with pytest.raises(RuntimeError, match=r"deleted with shape=float32\[2,3\]"):
        doubled + 1
    with pytest.raises(RuntimeError, match="deleted"):
        print(doubled)


def test_scalars_and_random_keys_stay_in_the_program():
    key, count, x = jax.jit(lambda k, n, x: (jax.random.split(k)[0], n + 1, x * n))(
        jax.random.key(3), np.int32(4), X
    )
    assert [type(one) is adapter.CardArray for one in (key, count, x)] == [False, False, True]
    assert int(count) == 5
    assert (
        jax.random.key_data(key) == jax.random.key_data(jax.random.split(jax.random.key(3))[0])
    ).all()


def test_a_number_that_has_no_type_of_its_own_takes_that_of_what_it_meets():
    results = jax.jit(lambda x, n: (2.0, n * 2, x * 0 + 1, x.sum() * n, jnp.float32(3)))(X, 1.5)
    expected = jax.eval_shape(
        lambda x, n: (2.0, n * 2, x * 0 + 1, x.sum() * n, jnp.float32(3)), X, 1.5
    )
    assert [one.weak_type for one in results] == [one.weak_type for one in expected]
    assert (jnp.ones(2, jnp.bfloat16) * results[1]).dtype == jnp.bfloat16


def test_a_checkpointed_part_is_planned_once():
    step = jax.jit(jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()))
    step(X)
    plans = {id(plan) for plan in adapter._plans.values()}
    step(X)
    assert {id(plan) for plan in adapter._plans.values()} == plans


def test_an_array_of_jax_is_sent_once_and_one_of_numpy_each_time(monkeypatch):
    sent = []
    former = adapter._sent
    monkeypatch.setattr(adapter, "_sent", lambda value: sent.append(1) or former(value))
    step, kept, changing = jax.jit(lambda x: x + 1), jnp.asarray(X), X.copy()
    for n in range(3):
        changing[0, 0] = n
        assert float(step(changing)[0, 0]) == n + 1
        step(kept)
    assert len(sent) == 3 + 1
    del kept
    assert not adapter._kept


def test_a_part_of_an_array_does_not_keep_the_whole():
    made = jax.jit(lambda x: x[:2])(np.ones(1000, "f"))
    assert made.tensor().untyped_storage().nbytes() == 8


def test_wide_numbers_are_there_if_the_program_enables_them():
    assert jax.jit(lambda x: x + 1)(np.ones(3)).dtype == np.float32
    with jax.enable_x64(True):
        assert jax.jit(lambda x: x + 1)(np.ones(3)).dtype == np.float64
        assert jax.jit(lambda x: x + 1)(np.arange(3)).dtype == np.int64


def test_what_the_program_prints_and_calls_within_a_function_is_done(capfd):
    def step(x):
        jax.debug.print("sum {}", x.sum())
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda value: np.asarray(value) * 3, shape, x) + 1

    np.testing.assert_array_equal(jax.jit(step)(X), 3 * X + 1)
    assert capfd.readouterr().out == "sum 15.0\n"


def test_jax_debug_nans_is_heeded():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        jax.jit(lambda x: jnp.log(-1 - x))(X)


def of_several_devices(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("all",))
    rows = PartitionSpec("all")
    return jax.shard_map(lambda part: part + 1, mesh=mesh, in_specs=rows, out_specs=rows)(x)


REFUSED = {
    "'svd' has no rule": (lambda x: jax.lax.linalg.svd(x)[1], X),
    "whole numbers has no rule at .*test_jax_arrays.py": (lambda x: x @ x.T, X.astype("i")),
    "shard_map.*this program has one: leave it out": (of_several_devices, X),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_the_cards_cannot_compute_is_refused_or_computed_by_jax(monkeypatch, why):
    function, x = REFUSED[why]
    with pytest.raises(PenstockError, match=why) as caught:
        jax.jit(function)(x)
    assert "set PENSTOCK_CARD_JAX_UNKNOWN=cpu" in caught.value.fix
    monkeypatch.setenv(adapter.UNKNOWN_VARIABLE, "cpu")
    expected = adapter._former
    with pytest.warns(PenstockCardWarning, match="is computed in the program's process"):
        given = jax.jit(function)(x)
    monkeypatch.setattr(pjit, "_pjit_call_impl_python", expected)
    np.testing.assert_allclose(given, jax.jit(function)(x), rtol=1e-5)


def test_an_array_that_changes_is_refused():
    counts = jax.new_ref(jnp.zeros(3))

    def step(counts):
        counts[...] = counts[...] + 1

    with pytest.raises(PenstockError, match="an array that changes"):
        jax.jit(step)(counts)


def test_types_that_torch_has_not_are_computed_here_with_a_warning():
    with pytest.warns(PenstockCardWarning, match="no numbers of type complex64"):
        made = jax.jit(lambda x: jnp.abs(x * 1j))(X)
    np.testing.assert_allclose(made, X)


def test_a_release_of_jax_that_was_not_tested_changes_nothing(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.99.0")
    monkeypatch.setattr(pjit, "_pjit_call_impl_python", adapter._former)
    with pytest.raises(RuntimeError, match=r"JAX 0\.99\.0 is not among the releases"):
        adapter.install()
    assert pjit._pjit_call_impl_python is adapter._former
