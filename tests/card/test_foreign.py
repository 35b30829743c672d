"""Operations of other packages, which have CPU kernels and none for the device."""

import pytest
import torch

_library = torch.library.Library("somebody", "DEF")
_library.define("smooth(Tensor[] some, Tensor weights, float by=2.0) -> (Tensor, Tensor[])")
_library.define("spoil(Tensor(a!) some) -> ()")
_library.define("nowhere(Tensor some) -> Tensor")


def _smooth(some, weights, by=2.0):
    return weights * by, [one.cumsum(0) * by for one in some]


_library.impl("smooth", _smooth, "CPU")
_library.impl("spoil", lambda some: some.zero_() and None, "CPU")


class Smoothed(torch.autograd.Function):
    """With a gradient, as torchvision::roi_align has."""

    @staticmethod
    def forward(context, given):
        return torch.ops.somebody.smooth([given], given)[1][0]

    @staticmethod
    def backward(context, gradient):
        flipped = gradient.flip(0)
        return torch.ops.somebody.smooth([flipped], flipped)[1][0].flip(0)


@pytest.mark.usefixtures("eager_splits")
def test_an_operation_of_another_package_gives_what_its_cpu_kernel_gives():
    given = torch.randn(14, 3)

    def run(device):
        leaf = given.to(device).requires_grad_()
        (Smoothed.apply(leaf * 3) ** 2).sum().backward()
        weights, (first, second) = torch.ops.somebody.smooth([leaf, leaf[:4].t()], leaf, by=0.5)
        return leaf.grad, weights, first, second

    for here, expected in zip(run("penstock"), run("cpu"), strict=True):
        assert here.device.type == "penstock"
        torch.testing.assert_close(here.cpu(), expected)


@pytest.mark.parametrize("name", ["spoil", "nowhere"])
def test_one_that_changes_its_arguments_or_has_no_cpu_kernel_is_refused(name):
    given = torch.ones(4, device="penstock")
    with pytest.raises(NotImplementedError, match=rf"no somebody::{name}: call it with tensors"):
        getattr(torch.ops.somebody, name)(given)
    assert given.tolist() == [1, 1, 1, 1]
