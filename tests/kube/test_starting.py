"""Which container starts with some slots, and the share that it gets."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.kube.kubelet import cdi_slots as slots_module
from penstock.kube.kubelet.cdi_slots import Slots, name_of, new_slot
from penstock.kube.kubelet.checkpoint import Holder, holders_of, read_record
from penstock.kube.kubelet.container_runtime import Ran, newest
from penstock.kube.kubelet.container_start import allocation_of, next_of, not_beside
from penstock.kube.kubelet.device_plugin import MOST_SLOTS, slot_ids
from penstock.kube.kubelet.node_pods import NodePod, read_pod
from penstock.model import PenstockError
from penstock.model.share import Share
from penstock_api.kubelet import cri_v1_pb2 as cri
from penstock_api.kubelet import deviceplugin_v1beta1_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path


def pod(
    *order: str, inits: str = "", sidecars: str = "", placed: str = "", **terms: str
) -> NodePod:
    return NodePod(
        "ns", "p", "uid", has_ended=False, claims=frozenset(), order=order,
        inits=frozenset(inits.split()), sidecars=frozenset(sidecars.split()), placed=placed,
        terms={f"penstock.io/{name.replace('_', '-')}": word for name, word in terms.items()},
    )  # fmt: skip


def held(*names: str) -> list[Holder]:
    return [Holder("uid", name, frozenset({"a"}), (f"penstock.io/slot={name}",)) for name in names]


def ran(**succeeded: bool) -> dict[str, Ran]:
    return {name: Ran(name, one) for name, one in succeeded.items()}


@pytest.mark.parametrize(
    ("so_far", "following"),
    [
        (ran(), "first"),
        (ran(first=False), "first"),
        (ran(first=True), "second"),
        (ran(first=True, second=False), "second"),
        (ran(first=True, second=True), "main"),
        (ran(first=True, second=True, main=False), "main"),
        (ran(main=True), "main"),  # what ran before it has been cleared away
        (ran(other=True), "main"),  # a main container without slots
    ],
)
def test_of_containers_that_use_a_slot_in_turn_the_runtime_says_which_is_next(so_far, following):
    whole = pod("first", "second", "main", "other", inits="first second")
    assert next_of(whole, held("main", "second", "first"), so_far).container == following


def test_a_sidecar_takes_over_the_slots_of_an_init_container_and_keeps_them():
    whole = pod("first", "side", "last", "main", inits="first last", sidecars="side")
    assert next_of(whole, held("side", "first"), ran()).container == "first"
    assert next_of(whole, held("side", "first"), ran(first=True)).container == "side"
    assert next_of(whole, held("side", "first"), ran(first=True, side=False)).container == "side"
    assert not_beside(whole, "last") == {"first", "main"}
    assert not_beside(whole, "side") == {"first"}, "the last one may be running when it restarts"
    assert not_beside(whole, "main") == {"first", "last"}
    assert not_beside(whole, "first") == {"side", "last", "main"}, "all begins anew"


kinds = st.lists(st.sampled_from(["init", "sidecar", "main"]), min_size=1, max_size=7).map(
    lambda found: sorted(found, key=lambda kind: kind == "main")
)


@given(kinds)
def test_containers_that_run_at_the_same_time_never_end_each_others_tenants(found):
    names = [f"c{at}" for at in range(len(found))]
    of = dict(zip(names, found, strict=True))
    whole = pod(
        *names,
        inits=" ".join(name for name in names if of[name] == "init"),
        sidecars=" ".join(name for name in names if of[name] == "sidecar"),
    )
    for at, name in enumerate(names):
        others = not_beside(whole, name)
        assert name not in others
        for before, other in enumerate(names):
            if of[name] == "main" and of[other] != "init":
                assert other not in others, "sidecars and main containers stay"
            if of[other] == "sidecar" and before < at:
                assert other not in others
            if of[name] == "sidecar" and of[other] == "init" and before > at:
                assert other not in others
            if of[other] == "init" and before < at:
                assert other in others, "it has ended"


def test_only_the_newest_attempt_in_the_newest_sandbox_counts():
    sandboxes = [cri.PodSandbox(id="old", created_at=1), cri.PodSandbox(id="new", created_at=2)]
    containers = [
        cri.Container(
            id=f"{sandbox}-{name}-{attempt}", pod_sandbox_id=sandbox, created_at=attempt,
            metadata=cri.ContainerMetadata(name=name, attempt=attempt),
        )
        for sandbox, name, attempt in [
            ("new", "first", 3), ("new", "first", 4), ("old", "first", 2), ("old", "main", 1)
        ]
    ]  # fmt: skip
    assert {name: one.id for name, one in newest(sandboxes, containers).items()} == {
        "first": "new-first-4"
    }
    assert newest([], containers) == {}


def entry(uid: str, container: str, *ids: str, name: str = "penstock.io/slot=x", **more: object):
    answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=name)])
    return {
        "PodUID": uid, "ContainerName": container, "ResourceName": "penstock.io/vgpu",
        "DeviceIDs": {"-1": list(ids)},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(), **more,
    }  # fmt: skip


def written(folder: Path, *entries: object) -> Path:
    document = {
        "Data": {"PodDeviceEntries": entries or None, "RegisteredDevices": {}},
        "Checksum": 1,
    }
    (folder / "kubelet_internal_checkpoint").write_text(json.dumps(document))
    return folder


def test_the_kubelets_record_shows_the_owners_of_slots_and_the_plugins_answers(tmp_path):
    assert read_record(tmp_path) == ()
    assert read_record(written(tmp_path)) == ()
    other = {**entry("u", "c", "a"), "ResourceName": "nvidia.com/gpu", "AllocResp": "!"}
    record = read_record(
        written(
            tmp_path,
            entry("u", "c", "a", "b"),
            entry("u", "i", "b", "a"),
            entry("v", "d", "c"),
            other,
        )
    )
    assert {one.container for one in holders_of(["b", "a"], record)} == {"c", "i"}
    assert [one.pod_uid for one in holders_of(["c"], record)] == ["v"]
    assert holders_of(["a"], record) == ()
    assert name_of(record[0].cdi_devices) == "x"


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"Data": {}}', '{"Data": {"PodDeviceEntries": [1]}}', "[" * 100_000,
        json.dumps({"Data": {"PodDeviceEntries": [{**entry("u", "c", "a"), "AllocResp": "@@"}]}}),
        json.dumps({"Data": {"PodDeviceEntries": [{**entry("u", "c", "a"), "AllocResp": "AAAA"}]}}),
        json.dumps({"Data": {"PodDeviceEntries": [{**entry("", "c", "a")}]}}),
        json.dumps({"Data": {"PodDeviceEntries": [{**entry("u", "c"), "DeviceIDs": ["a"]}]}}),
    ],
)  # fmt: skip
def test_a_record_that_no_kubelet_writes_is_an_error_that_names_the_file(tmp_path, text):
    file = tmp_path / "kubelet_internal_checkpoint"
    file.write_text(text)
    with pytest.raises(PenstockError, match="kubelet_internal_checkpoint cannot be read"):
        read_record(tmp_path)
    file.unlink()
    file.symlink_to(written(tmp_path.parent) / "kubelet_internal_checkpoint")
    with pytest.raises(PenstockError):
        read_record(tmp_path)


def test_slot_names_are_valid_for_kubelets_and_runtimes_and_never_repeat():
    names = {new_slot() for _ in range(1000)}
    assert len(names) == 1000
    assert all(len(name_of([name])) <= 63 for name in names)
    assert name_of(["penstock.io/slot=../x"]) == name_of(["nvidia.com/gpu=0"]) == ""
    assert [len(slot_ids(devices)) for devices in (0, 1, 8)] == [0, 512, 1024]
    assert len(set(slot_ids(1000))) == MOST_SLOTS
    assert slot_ids(8)[:512] == slot_ids(1), "what is in use keeps its name when devices come"


def test_a_placement_becomes_an_allocation_or_says_why_not():
    placed = '{"main":{"GPU-1":[1073741824,250]}}'
    assert allocation_of(pod("main", placed=placed), "main").measured == "terminate"
    waits = pod("main", placed=placed, on_exceed="suspend", grace="30s")
    found = allocation_of(waits, "main")
    assert (found.measured, found.grace_ns) == ("suspend", 30 * 10**9)
    one = allocation_of(pod("main", placed=placed, mode="elastic", policy="small"), "main")
    assert (one.owner, one.shares, one.mode, one.policy) == (
        "uid/main", {"GPU-1": Share(1 << 30, 250)}, "elastic", "small",
    )  # fmt: skip
    for whole, name, why in (
        (pod("main"), "main", "the Pod was not placed by penstock-scheduler"),
        (pod("main", placed=placed), "other", "does not include this container"),
        (pod("main", placed=placed, mode="lax"), "main", "'lax' is invalid"),
        (pod("main", placed=placed, on_exceed="stop"), "main", "'stop' is invalid"),
        (pod("main", placed=placed, grace="2 days"), "main", "grace"),
        (pod("main", placed="{"), "main", "placement cannot be read"),
    ):
        with pytest.raises(PenstockError) as told:
            allocation_of(whole, name)
        assert why in str(told.value)


def test_a_pod_s_containers_are_known_by_how_they_start():
    body = {
        "metadata": {
            "namespace": "n", "name": "p", "uid": "u", "annotations": {"penstock.io/mode": "x"},
        },
        "spec": {
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "m"}],
        },
        "status": {"phase": "Succeeded"},
    }  # fmt: skip
    one = read_pod(body)
    assert (one.order, one.inits, one.sidecars) == (("i", "s", "m"), {"i"}, {"s"})
    assert (one.terms, one.placed, one.has_ended) == ({"penstock.io/mode": "x"}, "", True)
    assert hash(one) == hash(read_pod(body)), "readiness keeps Pods in sets"


def spec(kind: str, *devices: tuple[str, dict], version: str = "0.5.0", **whole: object) -> dict:
    return {
        "cdiVersion": version, "kind": kind,
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices], **whole,
    }  # fmt: skip


def test_a_slot_lists_the_tenants_device_and_then_its_vendors(tmp_path, monkeypatch):
    static = tmp_path / "etc"
    static.mkdir()
    monkeypatch.setattr(slots_module, "STATIC", static)
    page = {"hostPath": "/state/tenants/t.1/quota", "containerPath": "/run/penstock-tenant/quota"}
    ours = spec("penstock.io/vgpu", ("t.1", {"mounts": [page], "hooks": [{"path": "/hook"}]}))
    (tmp_path / "penstock.io-vgpu_t.1.json").write_text(json.dumps(ours))
    both = {"mounts": [{"hostPath": "/lib.so"}], "env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    nodes = [(f"GPU-{at}", {"deviceNodes": [{"path": f"/dev/nvidia{at}"}]}) for at in range(2)]
    vendor = spec("nvidia.com/gpu", *nodes, version="0.7.0", containerEdits=both)
    (static / "nvidia.yaml").write_text(yaml.safe_dump(vendor))
    (static / "broken.json").write_text("{")

    slots = Slots(tmp_path)
    name = name_of([new_slot()])
    slots.write(name, ["penstock.io/vgpu=t.1", "nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1"])
    made = json.loads((tmp_path / f"penstock.io-slot_{name}.json").read_text())
    assert (made["cdiVersion"], made["kind"]) == ("0.7.0", "penstock.io/slot")
    edits = made["devices"][0]["containerEdits"]
    assert [one["hostPath"] for one in edits["mounts"]] == [page["hostPath"], "/lib.so"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"], "once, for both"
    assert [one["path"] for one in edits["deviceNodes"]] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert slots.tenants() == {name: "t.1"}
    for missing in ("nvidia.com/gpu=GPU-9", "penstock.io/vgpu=gone"):
        with pytest.raises(PenstockError, match="no CDI spec"):
            slots.write(name, ["penstock.io/vgpu=t.1", missing])
    slots.remove(name)
    assert slots.tenants() == {}
