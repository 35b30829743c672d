"""What the device refuses: the error says what is wrong and what to do, as CUDA's does."""

import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn

from penstock.model import PenstockError

pytestmark = [
    pytest.mark.usefixtures("eager_splits"),
    pytest.mark.filterwarnings("ignore:Sparse CSR"),
    pytest.mark.filterwarnings("ignore:.*quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


def _here(*size):
    return torch.ones(*size, device="penstock")


MIXED = {
    "sum": lambda: _here(2) + torch.ones(2),
    "sum of a CPU tensor": lambda: torch.ones(2) + _here(2),
    "product": lambda: torch.ones(2, 2) @ _here(2, 2),
    "in place": lambda: torch.ones(2).add_(_here(2)),
    "a model": lambda: nn.Linear(2, 2).to("penstock")(torch.ones(1, 2)),
    "a model of the CPU": lambda: nn.Linear(2, 2)(_here(1, 2)),
    "a loss": lambda: nn.functional.cross_entropy(_here(2, 2), torch.zeros(2, dtype=torch.long)),
    "a concatenation": lambda: torch.cat([_here(2), torch.ones(2)]),
    "a choice": lambda: torch.where(_here(2) > 0, torch.ones(2), _here(2)),
    "out": lambda: torch.add(_here(2), 1, out=torch.ones(2)),
    "an embedding": lambda: nn.Embedding(3, 2).to("penstock")(torch.tensor([1])),
    "a list": lambda: torch._foreach_add([_here(2)], [torch.ones(2)]),
    "a convolution": lambda: nn.Conv1d(1, 1, 1)(_here(1, 1, 4)),
    "an LSTM": lambda: nn.LSTM(2, 2).to("penstock")(torch.ones(1, 2)),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_are_not_mixed(name):
    with pytest.raises(RuntimeError, match=r"same device|two devices|on cpu|device type"):
        MIXED[name]()


def test_the_error_of_mixed_devices_says_which_tensor_is_elsewhere():
    with pytest.raises(RuntimeError, match=r"penstock:0 and cpu! Move the tensor of size \[3\]"):
        _here(3) + torch.ones(3)


def test_numbers_and_indices_of_the_cpu_are_taken_as_on_cuda():
    assert (_here(2) * torch.tensor(3.0)).tolist() == [3, 3]
    assert (torch.tensor(3.0) * _here(2)).tolist() == [3, 3]
    assert _here(3)[torch.tensor([0, 2])].tolist() == [1, 1]
    assert torch.ones(2).copy_(_here(2) * 4).tolist() == [4, 4]


def test_numpy_refuses_a_tensor_of_the_device_and_says_to_copy_it():
    for read in (lambda: _here(2).numpy(), lambda: _here(2).__array__()):
        with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
            read()
    assert _here(2).cpu().numpy().tolist() == [1, 1]
    assert _here(2).numpy(force=True).tolist() == [1, 1]


def test_sparse_tensors_are_refused_with_what_to_do():
    sparse = torch.eye(3).to_sparse()
    for move in (lambda: sparse.to("penstock"),
                 lambda: sparse.to_sparse_csr().to("penstock") @ _here(3, 3),
                 lambda: _here(3, 3).to_sparse(), lambda: sparse @ _here(3, 3),
                 lambda: torch.sparse_coo_tensor([[0]], [1.0], (3,), device="penstock")):  # fmt: skip  # noqa: E501
        with pytest.raises((NotImplementedError, RuntimeError), match=r"sparse.*CPU|same device"):
            move()


def test_quantized_and_nested_tensors_are_refused():
    with pytest.raises(NotImplementedError, match="CPU"):
        torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8).to("penstock")
    with pytest.raises(NotImplementedError, match="CPU"):
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("penstock")


def test_sharing_with_other_processes_is_refused_with_what_to_do():
    for share in (lambda: _here(2).share_memory_(),
                  lambda: _here(2).untyped_storage().share_memory_(),
                  lambda: nn.Linear(2, 2).to("penstock").share_memory(),
                  lambda: ForkingPickler.dumps(_here(2)),
                  lambda: ForkingPickler.dumps(nn.Parameter(_here(2)))):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"cpu\(\)"):
            share()


def test_ordinary_pickling_takes_the_content():
    assert pickle.loads(pickle.dumps(_here(2) * 3)).tolist() == [3, 3]  # noqa: S301


def test_dlpack_is_refused_with_what_to_do():
    for export in (lambda: _here(2).__dlpack__(),
                   lambda: torch.utils.dlpack.to_dlpack(_here(2)),
                   lambda: torch.from_dlpack(_here(2)),
                   lambda: _here(2).__dlpack_device__()):  # fmt: skip
        with pytest.raises((RuntimeError, BufferError, ValueError), match=r"cpu\(\)"):
            export()


def test_there_is_one_device_only():
    for use in (lambda: torch.ones(2, device="penstock:1"),
                lambda: torch.ones(2).to("penstock:1"),
                lambda: torch.penstock.set_device(1), lambda: torch.ones(2).to(device="penstock:7"),
                lambda: torch.accelerator.set_device_index(1)):  # fmt: skip
        with pytest.raises((RuntimeError, ValueError), match=r"penstock:[170]"):
            use()


def test_another_accelerator_is_still_refused_by_torch():
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            _here(2).to("cuda")


def test_pinning_a_tensor_of_the_device_is_refused():
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        _here(2).pin_memory()


def test_a_graph_is_not_captured_without_saying_so():
    with pytest.raises((AttributeError, NotImplementedError, RuntimeError)):
        torch.penstock.graph(None)


def test_an_index_out_of_range_is_an_error_at_the_latest_when_the_result_is_read():
    with pytest.raises((RuntimeError, PenstockError), match=r"(?i)index.*out of"):
        nn.Embedding(3, 2).to("penstock")(torch.tensor([1, 7, 2], device="penstock")).tolist()
    changed = _here(3)
    with pytest.raises((RuntimeError, PenstockError), match=r"(?i)index.*out of"):
        changed.index_fill_(0, torch.tensor([5], device="penstock"), 1.0).tolist()
    with pytest.raises((RuntimeError, PenstockError), match=r"(?i)index.*out of"):
        (changed + 1).tolist()
    assert _here(3).tolist() == [1, 1, 1]


def test_shapes_that_do_not_fit_are_refused_at_once():
    for wrong in (lambda: _here(2, 3) @ _here(2, 3), lambda: _here(2) + _here(3),
                  lambda: _here(4).view(3), lambda: torch.cat([_here(2, 2), _here(3, 3)])):  # fmt: skip  # noqa: E501
        with pytest.raises(RuntimeError):
            wrong()
