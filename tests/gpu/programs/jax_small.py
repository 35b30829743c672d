"""JAX: a compiled loop of matrix products and a gradient, without its usual 75 % of the memory."""

import os
import sys
import time

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"

import jax
import jax.numpy as jnp
import numpy as np
from say import digest_of, say


@jax.jit
def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


def main():
    began = time.monotonic()
    if jax.default_backend() != "gpu":
        words = "it has no CUDA plugin, or found no GPU"
        sys.exit(f"not here: JAX runs on {jax.default_backend()} here: {words}")
    keys = jax.random.split(jax.random.PRNGKey(5), 3)
    w, x, y = (jax.random.normal(key, (512, 512), dtype=jnp.float32) for key in keys)
    step = jax.jit(jax.value_and_grad(loss))
    for _ in range(20):
        value, gradient = step(w, x, y)
        w = w - 0.1 * gradient
    say(digest=digest_of(np.asarray(w)), value=float(value), seconds=time.monotonic() - began,
        jax=jax.__version__)  # fmt: skip


main()
