"""Hooks that raise in backward: the caller gets their error, as on the CPU."""

import pytest
from tests.card.support.import_torch import ForkServer


@pytest.fixture(scope="module")
def forks():
    server = ForkServer()
    yield server
    server.close()


def test_an_error_of_a_hook_is_raised_by_backward_and_the_program_goes_on(forks):
    code = """
import torch
from penstock.card import autoload
autoload.load()

def hook(*_):
    raise KeyError("of the hook")

def register(kind, leaf, result):
    if kind == "tensor":
        result.register_hook(hook)
    elif kind == "gradient is there":
        leaf.register_post_accumulate_grad_hook(hook)
    elif kind == "before a node":
        result.grad_fn.register_prehook(hook)
    else:
        result.grad_fn.register_hook(hook)

for kind in ["tensor", "gradient is there", "before a node", "after a node"] * 3:
    for device in ["cpu", "penstock"]:
        leaf = torch.ones(2, device=device, requires_grad=True)
        result = leaf * leaf
        register(kind, leaf, result)
        try:
            result.sum().backward()
        except KeyError as error:
            print(kind, device, error, error.__traceback__.tb_next is not None, error.__context__)
leaf = torch.ones(2, device="penstock", requires_grad=True)
(leaf * leaf).sum().backward()
print(leaf.grad.tolist())
"""
    done = forks.run(code, PENSTOCK_CARD="cpu")
    kinds = ["tensor", "gradient is there", "before a node", "after a node"] * 3
    assert done.lines == [
        *(
            f"{kind} {device} 'of the hook' True None"
            for kind in kinds
            for device in ("cpu", "penstock")
        ),
        "[2.0, 2.0]",
    ]
