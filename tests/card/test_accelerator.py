"""torch.accelerator, torch.penstock, printing and profiling: what programs ask of a device."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("eager_splits")


def test_the_device_is_the_accelerator_of_the_program():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("penstock")
    assert torch.accelerator.current_accelerator(check_available=True).type == "penstock"
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        assert torch.ones(2, device=torch.accelerator.current_accelerator()).is_penstock
    torch.accelerator.synchronize()
    assert torch.get_device_module("penstock") is torch.penstock
    assert torch.get_device_module() is torch.penstock


def test_streams_and_events_are_in_order():
    stream = torch.accelerator.current_stream()
    with torch.Stream(device="penstock") as other:
        given = torch.ones(3, device="penstock") * 2
        event = other.record_event()
    stream.wait_event(event)
    stream.wait_stream(other)
    stream.synchronize()
    assert event.query()
    given.record_stream(stream)
    assert given.tolist() == [2, 2, 2]


def test_the_module_of_the_device_answers():
    module = torch.penstock
    assert module.is_available()
    assert module.device_count() == 1
    assert module.current_device() == 0
    assert "3 cards" in module.get_device_name()
    assert module.is_initialized()
    assert module.is_bf16_supported()
    with module.device(0):
        module.synchronize()
    module.empty_cache()


def test_memory_is_told_and_comes_back():
    torch.accelerator.synchronize()
    before = torch.penstock.memory_allocated()
    kept = torch.zeros(1000, 1000, device="penstock")
    assert torch.penstock.memory_allocated() >= before + 4_000_000
    del kept
    torch.penstock.empty_cache()
    assert torch.penstock.memory_allocated() <= before + 1000
    assert torch.accelerator.memory_allocated() == torch.penstock.memory_allocated()
    torch.accelerator.empty_cache()


def test_a_tensor_says_where_it_is():
    given = torch.ones(3, device="penstock")
    assert given.device == torch.device("penstock:0")
    assert given.is_penstock
    assert given.get_device() == 0
    assert not given.is_cuda
    assert not given.is_cpu
    assert given.type() == "torch.penstock.FloatTensor"
    assert torch.ones(3).penstock().is_penstock
    assert given.layout is torch.strided


def test_a_tensor_is_printed_with_its_device():
    given = torch.tensor([[1.5, 2.0], [3.0, float("nan")]], device="penstock")
    assert repr(given).replace(", device='penstock:0'", "") == repr(given.cpu())
    assert "device='penstock:0'" in repr(given)
    assert "..." in repr(torch.zeros(2000, device="penstock"))
    assert "Parameter containing" in repr(nn.Parameter(given))
    assert f"{torch.tensor(2.5, device='penstock'):.2f}" == "2.50"
    assert repr(torch.zeros(0, device="penstock")) == "tensor([], device='penstock:0')"
    assert "requires_grad=True" in repr(torch.ones(2, device="penstock", requires_grad=True))


def test_a_tensor_of_one_element_is_a_number():
    one = torch.tensor(3, device="penstock")
    assert int(one) == 3
    assert float(one) == 3.0
    assert bool(one)
    assert [5, 6, 7, 8][one] == 8
    assert list(range(one)) == [0, 1, 2]
    assert len(torch.ones(4, device="penstock")) == 4
    assert [row.sum().item() for row in torch.ones(2, 3, device="penstock")] == [3, 3]
    assert 3 in torch.arange(5, device="penstock")
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted"):
        torch.ones(2, device="penstock").item()


def test_a_profiler_runs_and_names_operations():
    given = torch.ones(8, 8, device="penstock", requires_grad=True)
    with torch.profiler.profile() as profile:
        (given @ given).sum().backward()
    assert "aten::mm" in {one.key for one in profile.key_averages()}
    with torch.autograd.profiler.record_function("step"):
        given + 1


def test_copies_that_do_not_block_are_copies():
    given = torch.arange(6.0)
    moved = given.to("penstock", non_blocking=True)
    given.zero_()
    back = moved.to("cpu", non_blocking=True)
    torch.accelerator.synchronize()
    assert back.tolist() == [0, 1, 2, 3, 4, 5]
