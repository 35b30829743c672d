"""An operation that fails on one card: the program is told once, and goes on; no card waits."""

import gc
from unittest import mock

import pytest
import torch
from tests.card.support.sessions import held, session_of

from penstock.card.device import reductions
from penstock.card.device.tensors import buffer_of
from penstock.card.layout import PARTIAL, REDUCING, WHOLE, Split, split_rows

LIMIT = 4 << 20
ROWS, WIDE = 12, 64


@pytest.fixture(scope="module")
def limited():
    """Three equal cards, of which card 1 has little memory."""
    with session_of(f"cpu=1,cpu=1@{LIMIT},cpu=1") as session:
        yield session


@pytest.fixture
def session(limited):
    yield limited
    limited.synchronize()  # nothing is left to be told


def split(session, tensor):
    """A tensor on the device of which each card has as many rows."""
    moved = tensor.to("penstock")
    rows = (len(tensor) // 3,) * 3
    layout = split_rows(rows, tensor[0].numel() * tensor.element_size())
    with session.stream.lock:
        session.change_layout(buffer_of(moved), layout, tensor.dtype)
    return moved


def missing(session, tensor):
    """A tensor like this one, split, whose rows are missing on card 1."""
    wide = split(session, tensor).unsqueeze(-1).expand(*tensor.shape, LIMIT // tensor.numel()) * 1.0
    assert isinstance(buffer_of(wide).layout, Split)
    return wide.select(-1, 0)


def told(session):
    """The error of a synchronization, which must be the only one."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        session.synchronize()
    session.synchronize()
    return str(caught.value)


def test_memory_beyond_a_limit_is_an_error_that_names_card_and_operation(session):
    with held(session):
        missing(session, torch.ones(ROWS, WIDE))
    first, *_ = told(session).splitlines()
    assert first.startswith("aten::mul.Tensor failed on card 1: out of memory. Tried to allocate 5")
    assert "use a smaller batch" in first
    assert (torch.ones(ROWS, WIDE, device="penstock") + 1).sum().item() == 2 * ROWS * WIDE


def test_the_next_operation_raises(session):
    missing(session, torch.ones(ROWS, WIDE))

    def go_on():
        for _ in range(100_000):
            torch.ones(1, device="penstock")

    with pytest.raises(torch.OutOfMemoryError, match="failed on card 1"):
        go_on()


def test_a_missing_tensor_is_never_read(session):
    with held(session):
        own = missing(session, torch.ones(ROWS, WIDE))
        other = own + 1
    told(session)
    for one in (own, other, own * 0):
        with pytest.raises(RuntimeError, match="content of this tensor is missing"):
            one.cpu()


def gather(session, own):
    with session.stream.lock:
        session.change_layout(buffer_of(own), WHOLE, own.dtype)
    return [own]


def reduce(session, own):
    total = own.sum(0)
    assert buffer_of(total).layout is PARTIAL
    with session.stream.lock:
        session.change_layout(buffer_of(total), WHOLE, own.dtype)
    return [total]


def reduce_start(session, own):
    weight = torch.ones(WIDE, 512, device="penstock", requires_grad=True)
    with mock.patch.object(reductions, "BUCKET_BYTES", 1):
        (own @ weight).sum().backward()
    assert buffer_of(weight.grad).layout is REDUCING
    with session.stream.lock:
        session.change_layout(buffer_of(weight.grad), WHOLE, own.dtype)
    return [weight.grad]


def batch_norm(session, own):
    norm = torch.nn.BatchNorm1d(WIDE, device="penstock")
    return [norm(own)]


def batch_norm_backward(session, own):
    norm = torch.nn.BatchNorm1d(WIDE, device="penstock")
    out = norm(split(session, torch.rand(ROWS, WIDE)).requires_grad_())
    out.backward(own)
    return [norm.weight.grad, norm.bias.grad]


def nll_mean(session, own):
    target = split(session, torch.zeros(ROWS, dtype=torch.int64))
    return [torch.nn.functional.nll_loss(own, target)]


EXCHANGES = [gather, reduce, reduce_start, batch_norm, batch_norm_backward, nll_mean]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda one: one.__name__)
def test_a_card_without_data_takes_part_in_an_exchange(session, exchange):
    with held(session):
        own = missing(session, torch.ones(ROWS, WIDE)).contiguous()
        results = exchange(session, own)

        session.stream.flush()
    assert "failed on card 1" in told(session)
    for one in results:
        with pytest.raises(RuntimeError, match="content of this tensor is missing"):
            one.cpu()
    assert torch.equal(split(session, torch.ones(6, 2)).sum(0).cpu(), torch.full((2,), 6.0))


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda one: one.__name__)
def test_an_exchange_works_when_nothing_is_missing(session, exchange):
    for one in exchange(session, split(session, torch.rand(ROWS, WIDE))):
        assert one.cpu().isfinite().all()


def test_what_all_cards_know_to_have_failed_changes_nothing(session):
    norm = torch.nn.BatchNorm1d(WIDE, device="penstock")
    optimizer = torch.optim.SGD(norm.parameters(), 0.1, momentum=0.9)
    with held(session):
        norm(missing(session, torch.ones(ROWS, WIDE)).contiguous()).sum().backward()
        optimizer.step()
        session.stream.flush()
    told(session)
    assert torch.equal(norm.running_mean.cpu(), torch.zeros(WIDE))
    assert torch.equal(norm.weight.detach().cpu(), torch.ones(WIDE))


def test_memory_is_counted_on_each_card(session):
    gc.collect()  # what earlier tests left in tracebacks
    before = [one.used_bytes for one in torch.penstock.memory_by_card()]
    own = split(session, torch.ones(ROWS, WIDE))
    own_bytes = own.numel() * own.element_size() // 3
    after = torch.penstock.memory_by_card()
    assert [one.used_bytes - was for one, was in zip(after, before, strict=True)] == [own_bytes] * 3
    assert after[1].total_bytes == LIMIT
    assert after[1].free_bytes == LIMIT - after[1].used_bytes
    assert torch.penstock.mem_get_info() == (after[1].free_bytes, LIMIT)
    del own
    assert [one.used_bytes for one in torch.penstock.memory_by_card()] == before
    assert torch.penstock.max_memory_allocated() >= max(one.used_bytes for one in after)
