"""DataLoader feeds the device from worker processes, with pinned memory, as it feeds CUDA."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

pytestmark = [
    pytest.mark.usefixtures("eager_splits"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class _Numbers(Dataset):
    def __len__(self):
        return 14

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "index": index, "name": f"n{index}"}


class _OnDevice(_Numbers):
    def __getitem__(self, index):
        return torch.ones(2, device="penstock") * index


@pytest.mark.parametrize("options", [
    {}, {"pin_memory": True}, {"num_workers": 2}, {"num_workers": 2, "pin_memory": True},
    {"num_workers": 1, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 2},
    {"pin_memory": True, "pin_memory_device": "penstock"},
], ids=str)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*pin_memory_device")
def test_batches_reach_the_device(options):
    loader = DataLoader(_Numbers(), batch_size=5, **options)
    for _ in range(2):
        batches = list(loader)
        moved = [one["x"].to("penstock", non_blocking=True) for one in batches]
        assert torch.cat(moved).sum().item() == 3 * sum(range(14))
        assert torch.cat([one["index"] for one in batches]).tolist() == list(range(14))
        assert batches[2]["name"] == [f"n{i}" for i in range(10, 14)]


def test_pinned_memory_is_as_good_as_any():
    given = torch.ones(3)
    assert given.pin_memory().to("penstock").tolist() == [1, 1, 1]
    assert torch.empty(3, pin_memory=False).shape == (3,)


def test_samples_are_shuffled_by_the_seed():
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        loader = DataLoader(TensorDataset(torch.arange(14)), batch_size=7, shuffle=True)
        orders.append(torch.cat([one[0] for one in loader]).tolist())
    assert orders[0] == orders[1] != list(range(14))
    one, other = random_split(_Numbers(), [10, 4], torch.Generator().manual_seed(1))
    assert sorted([*one.indices, *other.indices]) == list(range(14))


def test_a_dataset_may_lie_on_the_device():
    data = TensorDataset(torch.arange(14.0, device="penstock"))
    assert sum(one[0].sum().item() for one in DataLoader(data, batch_size=5)) == 91


def test_a_forked_worker_that_uses_the_device_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"(?s)forked subprocess.*spawn.*on the CPU"):
        next(iter(DataLoader(_OnDevice(), num_workers=1)))
    assert torch.ones(2, device="penstock").tolist() == [1, 1]
