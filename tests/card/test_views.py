"""Views of tensors on the device: they share content, versions and gradients as on the CPU."""

import pytest
import torch
from tests.card.support.comparison import drawn, on_both

pytestmark = pytest.mark.usefixtures("eager_splits")

VIEWS = {
    "row": lambda x: x[3],
    "rows": lambda x: x[2:9:3],
    "column": lambda x: x[:, 1],
    "columns": lambda x: x[..., 1:5:2],
    "transposed": lambda x: x.t(),
    "flat": lambda x: x.view(-1)[5:60],
    "regrouped": lambda x: x.view(7, 2, 3, 2).permute(1, 3, 0, 2),
    "diagonal": lambda x: x.diagonal(1),
    "windows": lambda x: x.unfold(0, 4, 4),
    "strided": lambda x: x.as_strided((4, 3), (12, 2), 1),
    "narrowed": lambda x: x.narrow(0, 4, 5).narrow(1, 2, 3),
    "split": lambda x: x.split(5)[1],
    "chunk": lambda x: x.chunk(3, 1)[2],
    "unbound": lambda x: x.unbind(1)[4],
    "squeezed": lambda x: x.unsqueeze(0).squeeze(),
    "moved": lambda x: x.movedim(0, 1),
    "select": lambda x: x.select(1, 2),
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "integers": lambda x: x.view(torch.int32),
    "alias": lambda x: x.view_as(x),
}


def _split(device):
    """A tensor that lies in parts on the cards."""
    return drawn(device, 14, 6) @ torch.eye(6).to(device)


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_to_a_view_is_in_the_whole(name):
    def run(device):
        whole = _split(device)
        VIEWS[name](whole).fill_(5)
        return whole

    on_both(run)


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_to_the_whole_is_in_the_view(name):
    def run(device):
        whole = _split(device)
        view = VIEWS[name](whole)
        whole.mul_(2).add_(1)
        return view, view.shape, view.stride(), view.storage_offset(), view.is_contiguous()

    on_both(run)


def test_views_count_changes_with_their_base():
    whole = torch.zeros(4, 4, device="penstock")
    view, detached = whole[1:], whole.detach()
    view.add_(1)
    assert whole._version == view._version == detached._version == 1
    assert view._base is whole
    assert view._is_view()
    assert not whole._is_view()


def test_views_share_their_storage_and_copies_do_not():
    whole = torch.zeros(4, 4, device="penstock")
    assert whole[1:].untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert whole[1:].data_ptr() == whole.data_ptr() + 16
    assert whole.clone().data_ptr() != whole.data_ptr()
    assert whole.is_set_to(whole.view(4, 4))
    assert whole.contiguous() is whole
    assert whole.to("penstock") is whole
    assert whole.to("penstock", copy=True) is not whole


def test_a_view_outlives_its_base():
    def run(device):
        view = _split(device)[3:7, 1]
        _split(device)
        return view + 1

    on_both(run)


def test_copies_between_views_of_one_tensor_are_ordered():
    def run(device):
        whole = torch.arange(24.0).view(6, 4).to(device)
        whole[0].copy_(whole[5])
        whole[:, 0] = whole[:, 3].clone()
        whole.view(-1)[:4] += whole.view(-1)[-4:]
        return whole

    on_both(run)


def test_indexing_writes_and_reads_as_on_the_cpu():
    def run(device):
        whole = _split(device)
        index = torch.tensor([0, 3, 13, 3]).to(device)
        mask = whole > 0
        read = (whole[index], whole[index, 1], whole[mask], whole[..., None, 2], whole[-1, -1])
        whole[mask] = 0
        whole[index] += 1
        whole[index[:2], 0] = torch.tensor([8.0, 9.0]).to(device)
        whole[1, 2] = 3.5
        whole[[2, 4]] = -whole[[4, 2]]
        whole.index_add_(0, index, torch.ones(4, 6).to(device))
        return read, whole

    on_both(run)


def test_overlapping_tensors_are_refused_as_on_the_cpu():
    for device in ("cpu", "penstock"):
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.zeros(1, device=device).expand(4).add_(1)


def test_out_takes_the_result_and_the_size():
    def run(device):
        out = torch.empty(0).to(device)
        given = drawn(device, 14, 6)
        returned = torch.mul(given, 2, out=out)
        assert returned is out
        part = torch.zeros(20, 6).to(device)
        torch.sin(given, out=part[3:17])
        return out, part

    on_both(run)


def test_a_tensor_takes_the_content_of_another():
    def run(device):
        one, other = drawn(device, 3, 2), drawn(device, 4, 5)
        alias = one.view(-1)
        one.data = other
        one.add_(1)
        third = torch.empty(0).to(device).set_(other)
        third.mul_(2)
        return one, other, alias

    on_both(run)


def test_a_storage_grows_and_shrinks():
    def run(device):
        one = torch.arange(6.0).to(device)
        one.resize_(2, 2)
        grown = torch.arange(4.0).to(device).resize_(3, 2)
        return one, grown[:2]

    on_both(run)
