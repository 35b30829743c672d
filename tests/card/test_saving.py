"""Saving and loading: files that other devices read, and that the device reads from others."""

import io

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("eager_splits")


def _saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_state_comes_back_to_the_device(weights_only, is_zip):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("penstock")
    file = _saved(model.state_dict(), _use_new_zipfile_serialization=is_zip)
    loaded = torch.load(file, weights_only=weights_only)
    for name, one in model.state_dict().items():
        assert loaded[name].device == torch.device("penstock", 0)
        assert torch.equal(loaded[name], one), name


@pytest.mark.parametrize("to", ["cpu", torch.device("cpu"), {"penstock:0": "cpu"},
                                lambda storage, place: storage.cpu()])  # fmt: skip
def test_a_file_of_the_device_loads_on_the_cpu(to):
    given = torch.randn(14, 6)
    loaded = torch.load(_saved({"x": given.to("penstock")}), map_location=to)
    assert loaded["x"].device.type == "cpu"
    assert torch.equal(loaded["x"], given)


@pytest.mark.parametrize("to", ["penstock", "penstock:0", torch.device("penstock"),
                                {"cpu": "penstock"}])  # fmt: skip
def test_a_file_of_the_cpu_loads_on_the_device(to):
    given = torch.randn(14, 6)
    loaded = torch.load(_saved({"x": given, "n": 3}), map_location=to)
    assert loaded["x"].device.type == "penstock"
    assert torch.equal(loaded["x"].cpu(), given)


def test_what_shares_content_shares_it_after_loading():
    whole = torch.arange(6.0, device="penstock")
    loaded, view = torch.load(_saved([whole, whole[2:4]]))
    view.fill_(9)
    assert loaded.tolist() == [0, 1, 9, 9, 4, 5]
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_tensor_that_lies_in_parts_is_saved_whole():
    given, weight = torch.randn(14, 6), torch.randn(6, 3)
    product = given.to("penstock") @ weight.to("penstock")
    loaded = torch.load(_saved(product), map_location="cpu")
    torch.testing.assert_close(loaded, given @ weight)


def test_a_whole_model_and_an_optimizer_are_saved(tmp_path):
    model = nn.Linear(3, 2).to("penstock")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3, device="penstock")).sum().backward()
    optimizer.step()
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, tmp_path / "all.pt")
    loaded = torch.load(tmp_path / "all.pt", weights_only=False)
    assert torch.equal(loaded["model"].weight, model.weight)
    assert isinstance(loaded["model"].weight, nn.Parameter)
    average = loaded["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(average, optimizer.state_dict()["state"][0]["exp_avg"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_of_every_type_are_saved(dtype):
    given = torch.randn(5).to(dtype).to("penstock")
    assert torch.equal(torch.load(_saved(given)).cpu(), given.cpu())


def test_a_large_file_is_mapped_and_then_moved(tmp_path):
    given = torch.randn(14, 6)
    torch.save({"x": given}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", map_location="cpu", mmap=True)
    assert torch.equal(loaded["x"].to("penstock").cpu(), given)


def test_a_conjugated_tensor_and_a_negated_one_are_saved():
    given = torch.randn(5, dtype=torch.complex64, device="penstock")
    for one in (given.conj(), given.conj().imag):
        assert torch.equal(torch.load(_saved(one)).cpu(), one.cpu())
