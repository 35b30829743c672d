"""Uninstallation removes everything of ours from nodes and the API server, and nothing else."""

from __future__ import annotations

import fcntl
import json

from hypothesis import given
from hypothesis import strategies as some

from penstock.kube.uninstall.cluster import capacities, marks
from penstock.kube.uninstall.node import NodeFiles
from penstock.kube.uninstall.users import users_of

OURS = some.sampled_from(["penstock.io/way", "penstock.io/vgpu", "node.penstock.io/x"])
THEIRS = some.sampled_from(
    ["notpenstock.io/way", "penstock.io", "nvidia.com/gpu", "penstock.iox/a"]
)
words = some.dictionaries(some.one_of(OURS, THEIRS), some.text(max_size=5))
taints = some.lists(
    some.one_of(OURS, THEIRS).map(lambda key: {"key": key, "effect": "NoSchedule"}), max_size=5
)


def merged(target, patch):
    """A merge patch as an API server applies it (RFC 7386)."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            target[key] = merged(dict(target.get(key) or {}), value)
        else:
            target[key] = value
    return target


@given(words, words, taints, words)
def test_a_node_keeps_all_that_others_wrote_and_nothing_of_ours(notes, labels, tainted, capacity):
    node = {
        "metadata": {"name": "n", "resourceVersion": "7", "annotations": notes, "labels": labels},
        "spec": {"taints": tainted, "podCIDR": "10.0.0.0/24"},
        "status": {"capacity": capacity, "phase": "x"},
    }
    wanted = json.loads(json.dumps(node))

    def theirs(key: str) -> bool:
        return not (key.startswith("penstock.io/") or ".penstock.io/" in key)

    for part, name in (("metadata", "annotations"), ("metadata", "labels"), ("status", "capacity")):
        wanted[part][name] = {k: v for k, v in wanted[part][name].items() if theirs(k)}
    wanted["spec"]["taints"] = [one for one in tainted if theirs(one["key"])]
    clean = merged(merged(json.loads(json.dumps(node)), marks(node)), capacities(node))
    assert clean == wanted
    assert marks(clean) == capacities(clean) == {}


def test_a_nodes_files_go_and_those_of_others_stay(tmp_path):
    files = NodeFiles(
        tmp_path / "run/penstock", tmp_path / "lib/penstock", tmp_path / "cdi",
        tmp_path / "kubelet", tmp_path / "kubelet/device-plugins",
    )  # fmt: skip
    ours = [
        files.state / "tenants/a/quota",
        files.data / "meter.db",
        files.specs / "penstock.io-vgpu_a.json",
        files.specs / "penstock.io-slot_b.json",
        files.specs / ".penstock.io-vgpu_a.json.0123",
        files.kubelet / "plugins/penstock.io/dra.sock",
        files.kubelet / "plugins_registry/penstock.io-reg.sock",
        files.device_plugins / "penstock.io-vgpu.sock",
    ]
    theirs = [
        files.specs / "nvidia.com-gpu.json",
        files.kubelet / "plugins/gpu.nvidia.com/dra.sock",
        files.device_plugins / "kubelet.sock",
    ]
    for path in (*ours, *theirs):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    lock = (files.state / "agent.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert files.has_agent()
    lock.close()
    assert not files.has_agent()
    told = list(files.remove())
    assert files.state in told
    assert not [path for path in ours if path.exists()]
    assert not files.state.exists()
    assert not files.data.exists()
    assert all(path.exists() for path in theirs)
    assert list(files.remove()) == []  # again: nothing is there
    theirs[0].unlink()
    assert list(files.remove()) == [files.specs]
    assert list(files.remove()) == []


def test_pods_with_shares_are_listed_in_both_modes_and_ended_ones_are_not():
    def claim(name, driver, *pods):
        allocation = {"devices": {"results": [{"driver": driver}]}}
        reserved = [{"resource": "pods", "name": pod} for pod in pods]
        status = {"allocation": allocation, "reservedFor": reserved}
        return {"metadata": {"name": name, "namespace": "a"}, "status": status}

    def pod(name, phase, **annotations):
        metadata = {"name": name, "namespace": "b", "annotations": annotations}
        return {"metadata": metadata, "status": {"phase": phase}}

    claims = [
        claim("ours", "penstock.io", "one", "two"),
        claim("theirs", "gpu.nvidia.com", "three"),
        claim("unused", "penstock.io"),
        {"metadata": {"name": "new", "namespace": "a"}},
    ]
    placed = {"penstock.io/placed": "{}"}
    pods = [
        pod("four", "Running", **placed),
        pod("five", "Failed", **placed),
        pod("six", "Running"),
    ]
    assert users_of(claims, pods) == ["a/one", "a/two", "b/four"]
