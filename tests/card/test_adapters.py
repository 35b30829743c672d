"""The adapters of torch's accelerators, as far as a machine without one can show."""

import os
import subprocess
import sys
import types

import pytest
import torch

from penstock.card.adapters import open_adapter
from penstock.card.kinds import ADAPTERS
from penstock.card.names import VARIABLE
from penstock.model import PenstockError


class Module:
    """A module like torch.cuda with two devices, as their documents describe it."""

    def __init__(self):
        self.current, self.waited = None, []

    def device_count(self):
        return 2

    def set_device(self, number):
        self.current = number

    def synchronize(self, device=None):
        self.waited.append(device)

    def mem_get_info(self, device=None):
        return 3 << 30, 80 << 30


@pytest.fixture(params=sorted(set(ADAPTERS) - {"cpu"}))
def kind(request, monkeypatch):
    """A kind whose module is ours."""
    module = Module()
    if request.param == "npu":
        extension = types.ModuleType("torch_npu")
        extension.npu = module
        monkeypatch.setitem(sys.modules, "torch_npu", extension)
        # What torch_npu does when it is imported; torch lets only one extension take the place.
        monkeypatch.setattr(torch, "device", lambda name, number: f"{name}:{number}")
    else:
        monkeypatch.setattr(torch, request.param, module)
    return request.param, module


def test_a_card_of_each_kind_is_opened_and_says_how_much_memory_it_has(kind):
    name, module = kind
    adapter = open_adapter(f"{name}:1")
    assert str(adapter.device) == f"{name}:1"
    assert module.current == 1
    assert adapter.memory_bytes() == (3 << 30, 80 << 30)
    adapter.synchronize()
    assert module.waited == [adapter.device]


def test_a_device_that_is_not_there_is_named(kind):
    name, _ = kind
    with pytest.raises(PenstockError, match=f"no {name}:2.*sees 2 of them"):
        open_adapter(f"{name}:2")


def test_a_program_whose_card_cannot_be_opened_is_told_why():
    code = "import torch; torch.ones(2, device='penstock')"
    environment = {**os.environ, VARIABLE: "cpu=1,cpu:99=1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, check=False, timeout=60)  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert "CardError: card 1 cannot be used: its worker says: there is no cpu:99: " in last


def test_a_driver_that_does_not_tell_its_free_memory_has_what_torch_has_not_taken(monkeypatch):
    module = Module()

    def mem_get_info(device=None):
        raise RuntimeError("the device does not support the query")

    module.mem_get_info = mem_get_info
    module.get_device_properties = lambda _: types.SimpleNamespace(total_memory=16 << 30)
    module.memory_reserved = lambda _: 1 << 30
    monkeypatch.setattr(torch, "xpu", module)
    assert open_adapter("xpu").memory_bytes() == (15 << 30, 16 << 30)


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_what_adapters_ask_of_torch_is_there(name):
    module = getattr(torch, name)
    for function in ("device_count", "set_device", "synchronize", "mem_get_info",
                     "get_device_properties", "memory_reserved"):  # fmt: skip
        assert callable(getattr(module, function, None)), function
