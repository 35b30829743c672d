"""The rules compute JAX's operations of any sizes and numbers as JAX does; here without cards."""

import math

import hypothesis.extra.numpy as arrays
import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from tests.training.programs.jax_cases import flat

from penstock.card.frameworks import jax as adapter

few = settings(max_examples=12)  # each is compiled by JAX
MODES = st.sampled_from(["fill", "clip", "promise_in_bounds"])


@pytest.fixture(autouse=True, scope="module")
def without_cards():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "device", "cpu")
        yield


def check(function, *args, relative=3e-5):
    """The rules make of a function what JAX makes of it."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    values = [adapter._entered(*both) for both in zip(args, closed.in_avals, strict=True)]
    results = [adapter._here(one) for one in adapter._Plan(closed).run(values)]
    own = flat("", jax.tree.unflatten(jax.tree.structure(shape), results))
    expected = flat("", jax.jit(function)(*args))
    assert own.keys() == expected.keys()
    for key, value in expected.items():
        assert (own[key].dtype, own[key].shape) == (value.dtype, value.shape)
        if value.dtype.kind == "f":
            np.testing.assert_allclose(own[key], value, relative, 2e-5)
        else:
            np.testing.assert_array_equal(own[key], value)


def numbers(shape, whole=False):
    made = np.random.RandomState(sum(shape) + 1)
    return np.int32(made.randint(-9, 9, shape)) if whole else np.float32(made.randn(*shape))


def part(draw, values):
    """Some of the values, in any order."""
    order = draw(st.permutations(values))
    return order[: draw(st.integers(0, len(order)))]


@st.composite
def windows(draw):
    """An operand, the windows that a gather takes of it, and where they are."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    dims = list(range(len(shape)))
    pairs = []  # dimensions of the operand and of the indices that go together
    for dim in dims:
        free = [i for i in range(len(batch)) if i not in [own for _, own in pairs]]
        fitting = [i for i in free if batch[i] == shape[dim]]
        if fitting and draw(st.booleans()):
            pairs.append((dim, fitting[0]))
    batching = [dim for dim, _ in pairs]
    starts = part(draw, [dim for dim in dims if dim not in batching])
    sizes = [1 if dim in batching else draw(st.integers(1, shape[dim])) for dim in dims]
    gone = [dim for dim in dims
            if dim not in batching and sizes[dim] == 1 and draw(st.booleans())]  # fmt: skip
    rank = len(batch) + len(shape) - len(batching) - len(gone)
    count = rank - len(batch)
    own = sorted(draw(st.permutations(range(rank)))[:count])
    indices = draw(arrays.arrays(np.int32, (*batch, len(starts)), elements=st.integers(-3, 6)))
    return (
        shape,
        indices,
        tuple(sizes),
        lax.GatherDimensionNumbers(
            tuple(own), tuple(gone), tuple(starts), tuple(batching), tuple(i for _, i in pairs)
        ),
    )


@few
@given(windows(), MODES, st.booleans())
def test_a_gather(drawn, mode, whole):
    shape, indices, sizes, dims = drawn
    check(lambda x, n: lax.gather(x, n, dims, sizes, mode=mode), numbers(shape, whole), indices)


KINDS = [
    lax.scatter,
    lax.scatter_add,
    lax.scatter_sub,
    lax.scatter_mul,
    lax.scatter_min,
    lax.scatter_max,
]


@few
@given(windows(), MODES, st.sampled_from(KINDS), st.booleans())
def test_a_scatter(drawn, mode, kind, whole):
    shape, indices, sizes, dims = drawn
    assume(
        dims.start_index_map or indices.ndim == 1
    )  # of updates without an index XLA does the last
    own = [size for dim, size in enumerate(sizes)
           if dim not in {*dims.collapsed_slice_dims, *dims.operand_batching_dims}]  # fmt: skip
    others, windowed = iter(indices.shape[:-1]), iter(own)
    rank = indices.ndim - 1 + len(own)
    updates = tuple(next(windowed if i in dims.offset_dims else others) for i in range(rank))
    dims = lax.ScatterDimensionNumbers(
        dims.offset_dims, dims.collapsed_slice_dims, dims.start_index_map,
        dims.operand_batching_dims, dims.start_indices_batching_dims,
    )  # fmt: skip
    given = numbers(updates, whole)
    if kind is lax.scatter:
        given = np.full_like(given, 7)  # which of two is the last, JAX does not say
    check(lambda x, n, u: kind(x, n, u, dims, mode=mode), numbers(shape, whole), indices, given)


@st.composite
def products(draw):
    """Two operands, and which of their dimensions are summed over and which are batches."""
    kinds = draw(st.lists(st.sampled_from("xybc"), max_size=6))
    sizes = [draw(st.integers(0 if kind == "c" else 1, 4)) for kind in kinds]
    first = draw(st.permutations([n for n, kind in enumerate(kinds) if kind != "y"]))
    second = draw(st.permutations([n for n, kind in enumerate(kinds) if kind != "x"]))
    of = {kind: [n for n in first if kinds[n] == kind] for kind in "bc"}
    dims = tuple(([first.index(n) for n in of[k]], [second.index(n) for n in of[k]]) for k in "cb")
    return [sizes[n] for n in first], [sizes[n] for n in second], dims


@few
@given(products())
def test_a_product(drawn):
    first, second, dims = drawn
    check(lambda x, y: lax.dot_general(x, y, dims), numbers(first), numbers(second))


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 2))
    sizes = st.integers(1, 3)
    many = st.lists(sizes, min_size=rank, max_size=rank)
    groups, of_batch = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]))
    inputs = draw(sizes)
    lhs = (
        draw(sizes) * of_batch,
        inputs * groups,
        *draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank)),
    )
    rhs = (draw(sizes) * groups * of_batch, inputs, *draw(many))
    padding = draw(
        st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=rank, max_size=rank)
    )
    strides, by_lhs, by_rhs = draw(many), draw(many), draw(many)
    for size, window, (low, high), lhs_by, rhs_by in zip(
        lhs[2:], rhs[2:], padding, by_lhs, by_rhs, strict=True
    ):
        assume((size - 1) * lhs_by + 1 + low + high >= (window - 1) * rhs_by + 1)
        assume((size - 1) * lhs_by + 1 + min(low, 0) + min(high, 0) > 0)
    return lhs, rhs, strides, padding, by_lhs, by_rhs, groups, of_batch


@few
@given(convolutions(), st.booleans())
def test_a_convolution_and_its_gradients(drawn, is_differentiated):
    lhs, rhs, strides, padding, by_lhs, by_rhs, groups, of_batch = drawn

    def convolved(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, strides, padding, by_lhs, by_rhs,
            feature_group_count=groups, batch_group_count=of_batch,
        )  # fmt: skip

    def gradients(x, kernel):
        made, back = jax.vjp(convolved, x, kernel)
        return back(made + 1)

    check(gradients if is_differentiated else convolved, numbers(lhs), numbers(rhs))


@few
@given(st.data())
def test_a_pool_and_its_gradient(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    sizes = [data.draw(st.integers(1, size)) for size in shape]
    strides = [data.draw(st.integers(1, 3)) for _ in shape]
    kind = data.draw(st.sampled_from(["SAME", "VALID"]))
    function, first = data.draw(st.sampled_from([(lax.max, -math.inf), (lax.add, 0.0)]))

    def pooled(x):
        return lax.reduce_window(x, first, function, sizes, strides, kind)

    check(lambda x: jax.vjp(pooled, x)[1](pooled(x)), numbers(shape))
    check(pooled, numbers(shape))


@few
@given(st.data())
def test_a_pad(data):
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    config = []
    for size in shape:
        inside = data.draw(st.integers(0, 2))
        low, high = data.draw(st.integers(-5, 4)), data.draw(st.integers(-5, 4))
        assume(low + high + max(size + (size - 1) * inside, 0) >= 0)
        config.append((low, high, inside))
    check(lambda x: lax.pad(x, 1.5, config), numbers(shape))
    check(lambda x, y: lax.pad(x, y[0], config), numbers(shape), numbers((1,)))


@few
@given(st.data())
def test_a_slice_at_an_index_that_is_known_late(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    sizes = [data.draw(st.integers(1, size)) for size in shape]
    at = data.draw(arrays.arrays(np.int32, len(shape), elements=st.integers(-7, 7)))
    check(lambda x, n: lax.dynamic_slice(x, list(n), sizes), numbers(shape), at)
    check(
        lambda x, u, n: lax.dynamic_update_slice(x, u, list(n)), numbers(shape), numbers(sizes), at
    )


whole = st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3)


@few
@given(
    arrays.arrays(np.int32, 20, elements=whole, unique=False),
    arrays.arrays(np.int32, 20, elements=whole, unique=False),
    st.sampled_from([np.int32, np.int16, np.int8, np.uint8]),
)
def test_whole_numbers(a, b, kind):
    a, b = a.astype(kind), b.astype(kind)
    for one in (lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.bitwise_xor, lax.lt):
        check(one, a, b)
    check(lambda x: [x.astype(other) for other in ("i1", "u1", "i2", "i4", "f4", "bool")], a)


any_float = st.floats(width=32, allow_subnormal=False)
floats = arrays.arrays(np.float32, 20, elements=any_float)


@few
@given(floats, floats)
def test_floats(a, b):
    for one in (lax.add, lax.mul, lax.div, lax.max, lax.min, lax.eq, lax.le, lax.nextafter):
        check(one, a, b)
    check(lambda x: [x.astype(kind) for kind in ("i4", "i1", "i2", "bool", "bfloat16")], a)
    check(lambda x: (lax.sign(x), lax.floor(x), jax.numpy.round(x), lax.is_finite(x)), a)
    check(lambda x: (lax.sort(x), x.argmax(), x.argmin(), x.max(), lax.cummax(x)), a)


@few
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 4))
def test_a_sort_by_many_keys(rows, keys, seed):
    made = np.random.RandomState(seed)
    columns = [made.randint(0, 3, (rows, 9)).astype("i") for _ in range(4)]
    check(lambda *own: lax.sort(own, dimension=1, num_keys=keys), *columns)
    check(lambda x: lax.top_k(x, 4), columns[0].astype("f"))
