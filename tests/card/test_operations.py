"""Every operation of PyTorch's own table (OpInfo) gives on the device what it gives on the CPU.

Forward and backward, with whole arguments and with arguments split over three unlike cards.
"""

import pytest
from tests.card.support.operations import OPERATIONS, compare

NO_SPARSE = "the device has no sparse tensors; .to() refuses them and says to keep them on the CPU"
# Operations that differ, and why. Each must really differ.
KNOWN = {
    "sparse.sampled_addmm": NO_SPARSE,
    "sparse.mm.reduce": NO_SPARSE,
    "to_sparse": NO_SPARSE,
    "torch._scaled_mm": "float8 results are compared bit for bit, which assert_close refuses",
    "tensor_split": "the table's indices must lie on the CPU, as on CUDA, where they raise as well",
}


# torch has no kernel of these for the CPU, so that there is nothing to compare with.
NOT_ON_CPU = {
    "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward",
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of operations that are to go


def _case(name):
    marks = [pytest.mark.xfail(reason=KNOWN[name], strict=True)] if name in KNOWN else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("layout", ["whole", "split"])  # one after the other, for each operation
@pytest.mark.parametrize("name", [_case(name) for name in OPERATIONS])
def test_an_operation_equals_the_cpus(cards, name, layout):
    outcome = compare(name, is_split=layout == "split")
    assert bool(outcome.compared) != (name in NOT_ON_CPU)
    assert not outcome.differences, outcome.differences


def test_at_most_one_operation_in_a_hundred_differs(cards):
    assert 100 * len(KNOWN) <= len(OPERATIONS) - len(NOT_ON_CPU)
    assert set(KNOWN) <= set(OPERATIONS)
