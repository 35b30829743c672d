"""Digits of noise, learned by three layers in JAX: prints the loss of each step."""

import sys
import time

import jax
import jax.numpy as jnp
import optax
from mlp_data import STEPS, batches, weights

optimizer = optax.sgd(0.05, momentum=0.9) if "sgd" in sys.argv else optax.adam(0.002)


def loss(parameters, x, y):
    for weight, bias in parameters[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = parameters[-1]
    return optax.softmax_cross_entropy_with_integer_labels(x @ weight + bias, y).mean()


@jax.jit
def step(parameters, state, x, y):
    value, gradients = jax.value_and_grad(loss)(parameters, x, y)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(parameters, updates), state, value


parameters = jax.tree.map(jnp.asarray, weights())
state = optimizer.init(parameters)
for x, y in batches(STEPS):
    parameters, state, value = step(parameters, state, x, y)
    print(f"{value:.7f}", flush=True)
    time.sleep(0.02 if "slowly" in sys.argv else 0)
