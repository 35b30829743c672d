"""The annotation of a node's devices.

What is written is read back, and malformed text is refused.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.kube.objects.node_devices import MOST_DEVICES, NodeDevice, read_devices, write_devices
from penstock.model import PenstockError

words = some.text(max_size=40)
devices = some.builds(
    NodeDevice,
    uuid=some.text(min_size=1, max_size=60),
    index=some.integers(0, 64),
    model=words,
    memory_bytes=some.integers(1, 2**63 - 1),
    cores_permille=some.integers(1, 1000),
    tflops=some.none() | some.floats(min_value=0.01, max_value=1e6),
    healthy=some.booleans(),
    reason=words,
    simulated=some.booleans(),
    driver=words,
    cuda=words,
    architecture=words,
    profile=words,
)


@given(some.lists(devices, max_size=8, unique_by=lambda one: one.uuid))
def test_written_devices_are_read_back(given_devices):
    found = read_devices(write_devices(given_devices))
    assert list(found) == sorted(given_devices, key=lambda one: one.index)


anything = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=9),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(words, inner, max_size=4),
)
KEYS = ["uuid", "index", "model", "memory_bytes", "cores_permille", "tflops", "healthy"]


@given(some.lists(some.dictionaries(some.sampled_from(KEYS), anything)) | anything)
def test_malformed_devices_are_refused_or_harmless(nonsense):
    try:
        found = read_devices(json.dumps(nonsense))
    except PenstockError:
        return
    assert all(one.uuid and 0 < one.memory_bytes < 2**63 for one in found)
    assert all(0 < one.cores_permille <= 1000 for one in found)


def test_a_list_of_devices_beyond_its_bounds_is_refused():
    one = {"uuid": "GPU-1", "index": 0, "model": "m", "memory_bytes": 1, "cores_permille": 1}
    assert read_devices(json.dumps([{**one, "later": 1}])) == (NodeDevice("GPU-1", 0, "m", 1, 1),)
    many = [{**one, "uuid": f"GPU-{number}"} for number in range(MOST_DEVICES + 1)]
    for text in (
        "", "{}", "[1]", "[" * 100_000, " " * 200_000, json.dumps([one, one]), json.dumps(many),
        json.dumps([{**one, "memory_bytes": True}]), json.dumps([{**one, "cores_permille": 1001}]),
        json.dumps([{**one, "tflops": float("nan")}]), json.dumps([{**one, "tflops": 0}]),
    ):  # fmt: skip
        with pytest.raises(PenstockError, match="cannot be read"):
            read_devices(text)
