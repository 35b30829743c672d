"""Uses of JAX, each a function and its arguments. As a program: writes what they give to a file."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NUMBERS = np.random.RandomState(0)
NAN, INF = np.nan, np.inf
SPECIAL = np.array([0.0, -0.0, 1.5, -1.5, 2.5, -2.5, 0.49999997, NAN, INF, -INF, 3e9, -3e9], "f")
WHOLE = np.array([0, 1, -1, 7, -7, 5, 2**31 - 1, -(2**31)], "i")
BYTES = np.array([0, 1, 2, 7, 127, 128, 255], np.uint8)


def f(*shape):
    return NUMBERS.randn(*shape).astype(np.float32)


def i(most, *shape):
    return NUMBERS.randint(0, most, shape).astype(np.int32)


CASES = {}


def case(name, function, *args):
    assert name not in CASES
    CASES[name] = (function, args)


# Each element by itself.
for _name in (
    "abs neg sign floor ceil is_finite exp exp2 expm1 tanh logistic sin cos tan asinh atan sinh "
    "cosh square erf erfc cbrt"
).split():
    _own = getattr(lax, _name)
    case(_name, _own, np.concatenate([f(50), SPECIAL[:10]]))
for _name in "log log1p sqrt rsqrt lgamma digamma acosh bessel_i0e bessel_i1e".split():
    case(_name, getattr(lax, _name), np.abs(f(50)) + 1)
for _name in "asin acos atanh erf_inv".split():
    case(_name, getattr(lax, _name), np.clip(f(50), -0.9, 0.9))
for _name in "add sub mul div rem max min atan2 eq ne ge gt le lt nextafter".split():
    _own = getattr(lax, _name)
    case(_name, lambda a, b, own=_own: own(a, b), *np.meshgrid(SPECIAL, SPECIAL))
for (
    _name
) in "add sub mul div rem max min eq lt and or xor shift_left shift_right_arithmetic".split():
    _own = getattr(
        lax, {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.get(_name, _name)
    )
    case(f"{_name} of whole numbers", lambda a, b, own=_own: own(a, b), *np.meshgrid(WHOLE, WHOLE))
    if "shift" not in _name:
        case(f"{_name} of bytes", lambda a, b, own=_own: own(a, b), *np.meshgrid(BYTES, BYTES))
case(
    "shifts of small numbers",
    lambda a, b: (a << b, a >> b),
    *np.meshgrid(WHOLE, np.arange(-1, 34, dtype="i")),
)
case(
    "numbers on either side",
    lambda x: (2 - x, 2 / x, x / 3, x - 1, 1.5 * x, jnp.maximum(x, 0.5), x**2.5, 2.0**x),
    np.abs(f(9)) + 1,
)
case(
    "whole numbers on either side",
    lambda x: (7 - x, x // 3, x % 3, -7 // x, x * 5, x & 3, x == 5),
    WHOLE[1:],
)
case(
    "floor division and remainder",
    lambda x, y: (x // y, x % y, jnp.divmod(x, y)),
    *np.meshgrid(SPECIAL[2:7], SPECIAL[2:7]),
)
case("rounding", lambda x: (lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), jnp.round(x)), SPECIAL)
case("powers", lambda x: (x**2, x**3, x**4, x**-1, x**-3, jnp.power(x, 3.0)), np.abs(f(20)) + 0.5)
case("powers of whole numbers", lambda x: (x**2, x**3, x**5), WHOLE)
case(
    "to whole numbers",
    lambda x: [x.astype(t) for t in (jnp.int32, jnp.int8, jnp.int16, jnp.bool_)],
    SPECIAL,
)
case(
    "between whole numbers",
    lambda x: [x.astype(t) for t in (jnp.int8, jnp.uint8, jnp.int16, jnp.float32, jnp.bool_)],
    WHOLE,
)
case(
    "half precision",
    lambda x: (
        x.astype(jnp.bfloat16) * 3,
        x.astype(jnp.float16) + 1,
        x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16).T,
    ),
    f(6, 6),
)
case(
    "float8 and int4 stay here", lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32) + x, f(9)
)
case("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), f(9))
case(
    "bits",
    lambda x: (
        lax.bitcast_convert_type(x, jnp.int32),
        lax.bitcast_convert_type(x, jnp.uint32) >> 3,
    ),
    SPECIAL,
)
case("not", lambda x, y: (~x, ~(y > 0), x.astype(bool) & (y > 0)), WHOLE, f(8))
case(
    "select",
    lambda x: (jnp.where(x > 0, x, 0.0), jnp.where(x > 0, 1.0, x), jnp.where(x > 0, 1, 2)),
    f(9),
)
case("select of many", lambda n, x: lax.select_n(n, x, x + 1, x * 2), i(3, 9), f(9))
case("select by a scalar", lambda x: lax.select_n(x.sum() > 0, x, -x), f(9))
case(
    "clamp",
    lambda x: (lax.clamp(-1.0, x, 1.0), jnp.clip(x, 0), lax.clamp(x - 1, x, x[::-1])),
    SPECIAL,
)
case(
    "relu, gelu, silu, softplus",
    lambda x: [g(x) for g in (jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.softplus, jax.nn.elu)],
    f(20),
)

# Shapes.
case(
    "broadcast",
    lambda x: (x[:, None] + x[None], jnp.broadcast_to(x, (3, 5)), x + jnp.ones((4, 5))),
    f(5),
)
case(
    "reshape, transpose, squeeze",
    lambda x: (x.reshape(6, -1), x.T, jnp.squeeze(x[:1], 0), x.ravel(), jnp.swapaxes(x, 0, 2)),
    f(2, 3, 4),
)
case("reshape in another order", lambda x: lax.reshape(x, (4, 6), (2, 0, 1)), f(2, 3, 4))
case(
    "flip, roll, tile, repeat",
    lambda x: (
        jnp.flip(x),
        jnp.flip(x, 1),
        jnp.roll(x, 2, 1),
        jnp.tile(x, (2, 3)),
        jnp.repeat(x, 2, 0),
    ),
    f(3, 4),
)
case(
    "concatenate, stack, split",
    lambda x, y: (
        jnp.concatenate([x, y]),
        jnp.stack([x, x], 1),
        jnp.split(x, [1, 3], 1),
        jnp.unstack(x, axis=1),
    ),
    f(3, 4),
    f(2, 4),
)
case(
    "iota and masks",
    lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.arange(5) + x, jnp.eye(5) * x),
    f(5, 5),
)
case("slices", lambda x: (x[1:], x[:, ::2], x[-1], x[1:3, None, 2], x[..., ::-1], x[5:2]), f(6, 7))
case(
    "dynamic slices",
    lambda x, n: (
        lax.dynamic_slice(x, (n, 1), (2, 3)),
        lax.dynamic_slice(x, (n - 9, n + 9), (2, 3)),
        lax.dynamic_index_in_dim(x, n),
    ),
    f(5, 6),
    np.int32(2),
)
case(
    "dynamic slices from the cards",
    lambda x, n: lax.dynamic_slice(x, (n[0], n[1] + 7), (2, 3)),
    f(5, 6),
    i(3, 2),
)
case(
    "dynamic updates",
    lambda x, y, n: (lax.dynamic_update_slice(x, y, (n, n + 9)), x.at[n].set(1.0)),
    f(5, 6),
    f(2, 3),
    np.int32(2),
)
for _low, _high, _inside in (
    (1, 2, 0),
    (-1, 2, 0),
    (1, 2, 2),
    (-1, -2, 1),
    (-4, 3, 2),
    (0, -7, 1),
    (-9, 1, 1),
):
    case(
        f"pad {_low} {_high} {_inside}",
        lambda x, n=(_low, _high, _inside): (
            lax.pad(x, 1.5, (n, (0, 1, 0))),
            lax.pad(x, x[0, 0], (n, (0, 1, 0))),
        ),
        f(5, 3),
    )
case(
    "pads of numpy",
    lambda x: (jnp.pad(x, 1), jnp.pad(x, 2, "reflect"), jnp.pad(x, ((1, 0), (0, 2)), "edge")),
    f(4, 5),
)
case("nothing", lambda x: (x.sum(), x + 1, jnp.concatenate([x, x])), f(0, 3))

# Reductions, and along a dimension.
case(
    "sums",
    lambda x: (
        x.sum(),
        x.sum(0),
        x.sum((0, 2)),
        x.mean(1),
        x.var(0),
        x.std(),
        jnp.prod(x, (1, 2)),
        jnp.linalg.norm(x),
    ),
    f(3, 4, 5),
)
case(
    "sums of whole numbers",
    lambda x: (x.sum(), x.sum(1), x.prod(0), x.max(), x.min(1), (x > 2).sum(), x.mean()),
    i(9, 4, 5),
)
case(
    "extremes",
    lambda x: (x.max(), x.max(0), x.min((0, 1)), jnp.nanmax(x)),
    np.stack([SPECIAL, -SPECIAL]),
)
case("any and all", lambda x: ((x > 0).any(), (x > 0).all(1), (x > -9).all()), f(3, 4))
case(
    "arguments",
    lambda x: (x.argmax(), x.argmax(1), x.argmin(0)),
    np.concatenate([i(3, 4, 12).astype("f"), SPECIAL[None]]),
)
case("arguments of truth", lambda x: ((x > 0).argmax(1), x.argmax(0)), i(3, 4, 12) - 1)
case(
    "cumulative",
    lambda x: (
        jnp.cumsum(x, 1),
        jnp.cumprod(x, 0),
        lax.cummax(x, 1),
        lax.cummin(x),
        lax.cumlogsumexp(x, 1),
        lax.cumsum(x, 1, reverse=True),
        lax.cummax(x, reverse=True),
    ),
    f(4, 5),
)
case("cumulative of whole numbers", lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0)), i(5, 4, 5))
case(
    "sort",
    lambda x: (jnp.sort(x, 0), jnp.argsort(x), jnp.sort(x, descending=True), jnp.median(x, 1)),
    i(4, 5, 12).astype("f"),
)
case("sort of what is no number", lambda x: (jnp.sort(x), jnp.argsort(x)), SPECIAL[2:])
case("sort by two keys", lambda a, b, c: lax.sort((a, b, c), num_keys=2), i(3, 30), i(3, 30), f(30))
case("top_k", lambda x: lax.top_k(x, 3), i(4, 5, 12).astype("f"))
case(
    "softmax",
    lambda x: (jax.nn.softmax(x), jax.nn.log_softmax(x, 0), jax.nn.logsumexp(x, 1)),
    f(4, 6),
)
case("associative scan", lambda x: lax.associative_scan(jnp.add, x), f(7, 2))

# Products.
case("matmul", lambda x, y: (x @ y, x[0] @ y, x @ y[:, 0], x[0] @ y[:, 0]), f(7, 5), f(5, 3))
case(
    "batched matmul",
    lambda x, y: (x @ y, jnp.einsum("bij,bjk->kbi", x, y), jnp.einsum("bij,cjk->bcik", x, y)),
    f(3, 4, 5),
    f(3, 5, 2),
)
case(
    "tensordot",
    lambda x, y: (
        jnp.tensordot(x, y, ((0, 2), (1, 0))),
        jnp.outer(x[0, 0], y[0, 0]),
        jnp.einsum("abc->ca", x),
    ),
    f(3, 4, 5),
    f(5, 3, 2),
)
case(
    "dot_general",
    lambda x, y: lax.dot_general(x, y, (((3, 1), (0, 2)), ((2,), (1,)))),
    f(2, 3, 4, 5),
    f(5, 4, 3, 6),
)
case(
    "preferred type",
    lambda x: lax.dot_general(
        x.astype(jnp.bfloat16),
        x.astype(jnp.bfloat16),
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    ),
    f(5, 8),
)
case("attention", lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True), f(2, 6, 2, 4))


def convolved(rank=2, groups=1, of_batch=1, **more):
    spec = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NCDHW", "OIDHW", "NDHWC")}[
        rank
    ]
    return lambda x, k: lax.conv_general_dilated(
        x, k, dimension_numbers=spec, feature_group_count=groups, batch_group_count=of_batch,
        **{"window_strides": (1,) * rank, "padding": "SAME", **more},
    )  # fmt: skip


def with_gradient(function):
    """The value, and gradients of all arguments."""

    def both(*args):
        value, back = jax.vjp(function, *args)
        return value, back(jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape))

    return both


for _name, _function, _x, _k in (
    ("plain", convolved(), (3, 9, 8, 4), (3, 3, 4, 5)),
    ("valid", convolved(padding="VALID"), (3, 9, 8, 4), (3, 2, 4, 5)),
    ("with strides", convolved(window_strides=(2, 3)), (3, 9, 8, 4), (3, 3, 4, 5)),
    ("of one", convolved(), (3, 9, 8, 4), (1, 1, 4, 5)),
    ("with strides of one", convolved(window_strides=(2, 2)), (3, 9, 8, 4), (1, 1, 4, 5)),
    ("dilated", convolved(rhs_dilation=(2, 1)), (3, 9, 8, 4), (3, 3, 4, 5)),
    ("transposed", convolved(lhs_dilation=(2, 3), padding=((1, 2), (0, 3))),
     (3, 5, 4, 4), (3, 3, 4, 5)),
    ("with odd padding", convolved(padding=((2, 0), (-1, 3))), (3, 9, 8, 4), (3, 3, 4, 5)),
    ("in groups", convolved(groups=2), (3, 9, 8, 4), (3, 3, 2, 6)),
    ("by depth", convolved(groups=4, window_strides=(2, 2)), (3, 9, 8, 4), (3, 3, 1, 8)),
    ("in groups of the batch", convolved(of_batch=2), (4, 9, 8, 4), (3, 3, 4, 6)),
    ("over one dimension", convolved(1), (3, 9, 4), (3, 4, 5)),
    ("over three dimensions", convolved(3, padding=((1, 0), (0, 0), (1, 1))),
     (2, 3, 4, 5, 6), (4, 3, 2, 2, 2)),
):  # fmt: skip
    case(f"convolution {_name}", with_gradient(_function), f(*_x), f(*_k))


def pooled(kind, sizes, strides, padding):
    first = {"max": -INF, "min": INF, "add": 0.0}[kind]
    return lambda x: lax.reduce_window(
        x, first, getattr(lax, kind), (1, *sizes, 1), (1, *strides, 1), padding
    )


for _kind in ("max", "add"):
    for _sizes, _strides, _padding in (
        ((2, 2), (2, 2), "VALID"),
        ((3, 2), (2, 1), "SAME"),
        ((3, 3), (1, 1), "VALID"),
    ):
        case(
            f"pool {_kind} {_sizes} {_strides} {_padding}",
            with_gradient(pooled(_kind, _sizes, _strides, _padding)),
            f(2, 7, 6, 3),
        )
case("pool min", pooled("min", (2, 3), (1, 2), "SAME"), f(2, 7, 6, 3))
case(
    "pool with equal maxima",
    with_gradient(pooled("max", (3, 3), (1, 1), "SAME")),
    i(2, 2, 7, 6, 3).astype("f"),
)

# Indices.
case("embedding", with_gradient(lambda w: w[np.array([[1, 3, 3], [0, -1, 9]])]), f(10, 4))
case(
    "embedding by an argument",
    lambda w, n: (
        w[n],
        jnp.take(w, n, axis=0),
        jnp.take(w, n, axis=1, mode="clip"),
        jnp.take(w, n, mode="wrap"),
    ),
    f(10, 4),
    i(12, 2, 3) - 1,
)
case(
    "out of range",
    lambda w, n: (
        jnp.take(w, n, axis=0),
        jnp.take(w.astype("i"), n, axis=0),
        jnp.take(w > 0, n, axis=0),
        w.at[n].get(mode="fill", fill_value=7.0),
        w.at[n].get(mode="clip"),
    ),
    f(4, 3),
    np.array([0, 3, 4, -4, -5, 100], "i"),
)
case(
    "take_along_axis",
    lambda x, n: (jnp.take_along_axis(x, n, 1), jnp.take_along_axis(x, n[:2], 0)),
    f(6, 5),
    i(5, 6, 5),
)
case(
    "take_along_axis of three",
    lambda x, n: [jnp.take_along_axis(x, n[:2, :2, :2], a) for a in range(3)],
    f(2, 2, 2),
    i(2, 2, 2, 2),
)
case(
    "cross entropy",
    with_gradient(
        lambda x: -jnp.take_along_axis(jax.nn.log_softmax(x), np.array([[1], [0], [4]]), 1).mean()
    ),
    f(3, 5),
)
case(
    "many indices",
    lambda x, a, b: (x[a, b], x[:, a, b], x[a, :, b], x[a[:, None], b[None]], x[1, a]),
    f(4, 4, 4),
    i(4, 3),
    i(4, 3),
)
case(
    "gather of windows",
    lambda x, n: lax.gather(
        x, n, lax.GatherDimensionNumbers((0, 2), (), (0, 1)), (2, 3), mode="clip"
    ),
    f(5, 6),
    i(6, 4, 2),
)
case(
    "vmapped slices",
    lambda x, n: jax.vmap(lambda r, m: lax.dynamic_slice(r, (m,), (3,)))(x, n),
    f(4, 8),
    i(8, 4),
)
case(
    "vmapped updates",
    lambda x, n: jax.vmap(lambda r, m: lax.dynamic_update_slice(r, jnp.ones(2), (m,)))(x, n),
    f(4, 8),
    i(8, 4),
)
case(
    "scatter",
    lambda x, n: (x.at[n].set(1.0), x.at[n, 1].set(2.0), x.at[:, n].set(3.0), x.at[n[0]].set(x[1])),
    f(5, 6),
    np.array([0, 3, 4], "i"),
)
case(
    "scatter out of range",
    lambda x, n: (
        x.at[n].add(1.0),
        x.at[n].set(2.0),
        x.at[n].max(9.0),
        x.at[n].add(1.0, mode="clip"),
    ),
    f(4, 3),
    np.array([0, 4, -5, 9], "i"),
)
case(
    "scatter that adds",
    lambda x, n: (
        x.at[n].add(x[:6]),
        x.at[n, n].add(1.0),
        x.at[:, n % 3].add(2.0),
        x.at[n].subtract(1.5),
    ),
    f(7, 3),
    np.array([0, 3, 3, 3, 1, 0], "i"),
)
case(
    "scatter of the largest",
    lambda x, n: (x.at[n].max(0.1), x.at[n].min(0.1), x.at[n].multiply(2.0)),
    f(7, 3),
    np.array([0, 3, 3, 1], "i"),
)
case(
    "scatter of whole numbers",
    lambda x, n: (
        x.at[n].add(2),
        x.at[n].set(5),
        jnp.bincount(n, length=9),
        jnp.zeros(9, bool).at[n].set(True),
    ),
    i(9, 9),
    np.array([0, 3, 3, 1], "i"),
)
case(
    "segments",
    lambda x, n: (jax.ops.segment_sum(x, n, 4), jax.ops.segment_max(x, n, 4)),
    f(9, 2),
    i(4, 9),
)
case("one_hot", lambda n: jax.nn.one_hot(n, 5), i(6, 7))
case(
    "searchsorted",
    lambda a, x: jnp.searchsorted(a, x),
    np.sort(np.concatenate([SPECIAL, f(9)])),
    SPECIAL,
)

# Calls, loops, derivatives.
case("scan", lambda x: lax.scan(lambda c, r: (c + r.sum(), (c * r, c)), 0.0, x), f(5, 3))
case(
    "scan in reverse",
    lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c), x[0], x, reverse=True),
    f(5, 3),
)
case("scan of nothing", lambda x: lax.scan(lambda c, r: (c, r), 1.0, x), f(0, 3))
case(
    "scan with a gradient",
    with_gradient(lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c), x[0], x)[0]),
    f(5, 3),
)
case("fori_loop", lambda x: lax.fori_loop(0, 4, lambda k, c: c + x[k] * k, x[0]), f(5, 3))
case(
    "while_loop",
    lambda x: lax.while_loop(
        lambda c: (c[0] < 50) & (c[1] < 9), lambda c: (c[0] * 2, c[1] + 1), (jnp.abs(x).sum(), 0)
    ),
    f(5),
)
case(
    "cond",
    lambda x: (lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), lax.switch(7, [jnp.sin, jnp.cos], x)),
    f(5),
)
case(
    "cond by the program's number",
    lambda n, x: lax.switch(n, [jnp.sin, jnp.cos, jnp.tan], x),
    np.int32(1),
    f(5),
)
case("checkpoint", with_gradient(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))), f(5))
case("nested jit", lambda x: jax.jit(lambda y: jax.jit(jnp.sin)(y) + 1)(x), f(5))
case(
    "vmap and hessian",
    lambda x: (
        jax.vmap(jnp.dot)(x, x),
        jax.hessian(lambda y: (y**3).sum())(x[0]),
        jax.jacfwd(jnp.sin)(x[1]),
    ),
    f(4, 3),
)


@jax.custom_vjp
def doubled(x):
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))
case("custom_vjp", lambda x: (doubled(x), jax.grad(lambda y: doubled(y).sum())(x)), f(5))


@jax.custom_jvp
def halved(x):
    return x / 2


halved.defjvp(lambda x, t: (halved(x[0]), 5 * t[0]))
case("custom_jvp", lambda x: (halved(x), jax.jvp(halved, (x,), (x,))), f(5))
CONSTANT = f(3, 4)
case(
    "constants of the function",
    lambda x: (x + CONSTANT, x @ jnp.asarray(CONSTANT).T, x * jnp.linspace(0, 1, 4)),
    f(3, 4),
)
case(
    "results that are arguments",
    lambda x, y: (x, x, y, 3.0, jnp.zeros(3), jnp.arange(4)),
    f(3),
    np.float32(2),
)
case(
    "scalars",
    lambda n, x: (n + 1, n * x, (n + 1) * x.sum(), 1 - 0.9**n, x / (1 - 0.9**n)),
    np.int32(3),
    f(4),
)

# Random numbers are JAX's own.
KEY = np.array([0, 42], np.uint32)
case(
    "random",
    lambda k: (
        jax.random.normal(k, (7,)),
        jax.random.uniform(k, (3, 2)),
        jax.random.randint(k, (5,), 0, 9),
        jax.random.permutation(k, 9),
        jax.random.split(k),
        jax.random.categorical(k, jnp.zeros(5)),
    ),
    KEY,
)
case(
    "dropout",
    lambda k, x: jnp.where(jax.random.bernoulli(k, 0.7, x.shape), x / 0.7, 0),
    KEY,
    f(5, 6),
)
case(
    "random of keys",
    lambda n, x: jax.random.normal(jax.random.fold_in(jax.random.key(1), n), (4,)) * x,
    np.int32(5),
    f(4),
)
case("categorical of the cards", lambda k, x: jax.random.categorical(k, x), KEY, f(5, 6))
case(
    "vmapped random",
    lambda k, x: jax.vmap(lambda one, r: jax.random.normal(one, (3,)) + r)(
        jax.random.split(k, 4), x
    ),
    KEY,
    f(4, 3),
)
case("permuted rows", lambda k, x: jax.random.permutation(k, x), KEY, f(6, 2))


def flat(name, value):
    """The leaves of what a case gave, by name, as NumPy has them."""
    leaves = jax.tree.leaves(value)
    return {f"{name}/{n}": np.asarray(one, np.float32 if one.dtype == jnp.bfloat16 else None)
            for n, one in enumerate(leaves)}  # fmt: skip


if __name__ == "__main__":
    told = {}
    for one, (function, args) in CASES.items():
        told |= flat(one, jax.jit(lambda *given, function=function: function(*given))(*args))
    np.savez(sys.argv[1], **{name.replace("/", "|"): value for name, value in told.items()})
