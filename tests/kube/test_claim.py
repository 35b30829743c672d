"""Claims and slices without a cluster: what they grant and list, and why bad ones are refused."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from penstock.kube.kubelet.claim import ClaimRef, read_claim
from penstock.kube.kubelet.node_inventory import device_name
from penstock.kube.kubelet.node_pods import NodePod, read_pod
from penstock.kube.kubelet.pod_events import Told, event_of, message_of
from penstock.kube.kubelet.resource_slices import (
    MOST_IN_SLICE,
    Slices,
    _told,
    semantic_version,
    slices_of,
)
from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.node_devices import NodeDevice
from penstock.kube.objects.opaque_parameters import parameters_for, read_parameters
from penstock.kube.objects.quantity import parse_whole
from penstock.model import PenstockError
from penstock.node.admission.resize import Resize, resized
from penstock.node.admission.scheduled_cap import accounted_label
from penstock.node.tenants.grant import DeviceGrant, Grant
from penstock.policy.resolve import Settings
from penstock_api.v1 import agent_pb2

REF = ClaimRef("team", "claim", "uid-1")
UUID = "GPU-8497431a-5e76-5def-82ca-f3790602636d"
DEVICE = device_name(UUID)
OURS = {"apiVersion": "penstock.io/v1alpha1", "kind": "VgpuParameters"}


def a_result(**changes: object) -> dict:
    return {
        "request": "gpu", "driver": "penstock.io", "pool": "node-1", "device": DEVICE,
        "shareID": "share-1", "consumedCapacity": {"memory": "1Gi", "coresPermille": "250"},
        **changes,
    }  # fmt: skip


def a_claim(*results: dict, config: list | None = None, **status: object) -> dict:
    devices = {"results": list(results) or [a_result()], "config": config or []}
    return {
        "metadata": {"name": "claim", "namespace": "team", "uid": "uid-1"},
        "status": {
            "allocation": {"devices": devices},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "p"}],
            **status,
        },
    }


def test_all_shares_of_a_claim_become_one_tenant_even_two_of_one_device():
    other = {"memory": "512Mi", "coresPermille": "50"}
    granted = read_claim(
        a_claim(
            a_result(),
            a_result(request="more/small", consumedCapacity=other),
            a_result(driver="else.io", consumedCapacity=None),
        ),
        REF,
        "node-1",
    )
    allocation = granted.allocation({DEVICE: UUID})
    ((uuid, share),) = allocation.shares.items()
    assert (uuid, share.memory_bytes, share.cores_permille) == (UUID, 1536 << 20, 300)
    assert (allocation.pod, allocation.owner, allocation.mode) == ("claim", "uid-1", "strict")
    with pytest.raises(PenstockError, match="knows no device"):
        granted.allocation({})


def test_a_tenant_is_named_after_its_pod_only_if_the_claim_belongs_to_that_pod():
    claim = a_claim()
    owner = {"kind": "Pod", "name": "web-0", "uid": "p", "controller": True}
    claim["metadata"]["ownerReferences"] = [owner]
    assert read_claim(claim, REF, "node-1").pod == "web-0"


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (a_claim(reservedFor=[]), "reserved for no Pod"),
        (a_claim(allocation=None), "not allocated"),
        (a_claim(a_result(pool="node-2")), "a device of node-2"),
        (a_claim(a_result(adminAccess=True)), "admin access"),
        (a_claim(a_result(consumedCapacity=None)), "1.36"),
        (a_claim(a_result(consumedCapacity={"memory": "1Gi", "coresPermille": "1001"})), "1001"),
        (a_claim(a_result(driver="else.io")), "0 devices"),
        (a_claim(*[a_result()] * 33), "33 devices"),
        (
            a_claim(a_result(), a_result(request="b"), config=[
                {"source": "FromClaim", "requests": ["b"], "opaque": {
                    "driver": "penstock.io", "parameters": {**OURS, "mode": "elastic"}}}]),
            "different parameters",
        ),
    ],
)  # fmt: skip
def test_an_allocation_that_cannot_be_prepared_is_refused_with_a_reason(claim, why):
    with pytest.raises(PenstockError, match=why) as refused:
        read_claim(claim, REF, "node-1")
    assert refused.value.fix


def test_another_claim_of_the_same_name_is_not_prepared():
    claim = a_claim()
    claim["metadata"]["uid"] = "uid-2"
    with pytest.raises(PenstockError, match="a newer claim has its name"):
        read_claim(claim, REF, "node-1")


def opaque(source: str, requests: list | None = None, **said: object) -> dict:
    parameters = {**OURS, **said}
    return {
        "source": source, "requests": requests or [],
        "opaque": {"driver": "penstock.io", "parameters": parameters},
    }  # fmt: skip


def test_each_key_of_a_claim_overrides_its_class_in_any_order():
    configs = [
        opaque("FromClaim", ["gpu"], mode="elastic"),
        opaque("FromClass", mode="strict", policy="small", onExceed={"grace": "3s"}),
        opaque("FromClaim", ["other"], policy="large"),
        {"source": "FromClaim", "opaque": {"driver": "else.io", "parameters": 3}},
    ]
    expected = Settings("elastic", "small", None, 3 * 10**9)
    assert parameters_for("gpu", configs) == parameters_for("gpu/sub", configs) == expected
    assert parameters_for("other", configs) == Settings("strict", "large", None, 3 * 10**9)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        (None, "NoneType"),
        ({}, "apiVersion is None"),
        ({**OURS, "kind": "Other"}, "kind is 'Other'"),
        ({**OURS, "Mode": "strict"}, "did you mean mode"),
        ({**OURS, "mode": ["strict"]}, "mode is"),
        ({**OURS, "policy": "Not A Name"}, "not a valid object name"),
        ({**OURS, "policy": "x" * 300}, "not a valid object name"),
        ({**OURS, "onExceed": "terminate"}, "onExceed is not an object"),
        ({**OURS, "onExceed": {"measured": "kill"}}, "not one of deny"),
        ({**OURS, "onExceed": {"grace": "soon"}}, "grace"),
        ({**OURS, "onExceed": {"grace": "25h"}}, "24h"),
    ],
)
def test_invalid_parameters_are_refused_with_what_is_wrong(parameters, why):
    with pytest.raises(PenstockError, match=why):
        read_parameters(parameters)


devices = some.builds(
    NodeDevice,
    uuid=some.uuids().map(lambda one: f"GPU-{one}"),
    index=some.integers(0, 200),
    model=some.text(max_size=100),
    memory_bytes=some.integers(16 << 20, 1 << 40),
    tflops=some.none() | some.floats(0.1, 5000),
    healthy=some.booleans(),
    driver=some.sampled_from(["", "580.65.06", "rubbish", "1.2.3.4"]),
)


@settings(max_examples=25)
@given(some.lists(devices, max_size=150, unique_by=lambda one: one.uuid))
def test_slices_list_every_device_once_within_the_limits_that_servers_check(given_devices):
    slices = slices_of("node", "uid", given_devices, 7)
    entries = [entry for one in slices for entry in one["spec"]["devices"]]
    assert [entry["name"] for entry in entries] == [device_name(one.uuid) for one in given_devices]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in slices} == {len(slices)}
    assert all(len(one["spec"]["devices"]) <= MOST_IN_SLICE for one in slices)
    for entry, device in zip(entries, given_devices, strict=True):
        for capacity in entry["capacity"].values():
            policy = capacity["requestPolicy"]
            least, most, step = (
                parse_whole(policy["validRange"][k]) for k in ("min", "max", "step")
            )
            usual, whole = parse_whole(policy["default"]), parse_whole(capacity["value"])
            assert least <= usual <= most == whole
            assert (usual - least) % step == (most - least) % step == 0
            assert least + step <= whole
        assert parse_whole(entry["capacity"]["memory"]["value"]) <= device.memory_bytes
        assert bool(entry.get("taints")) != device.healthy
        for attribute in entry["attributes"].values():
            assert len(str(attribute.get("string", ""))) <= 64
    untold = slices_of("node", "uid", given_devices, 7, taints=False)
    left = [entry["name"] for one in untold for entry in one["spec"]["devices"]]
    assert left == [device_name(one.uuid) for one in given_devices if one.healthy]


def test_a_server_s_way_of_writing_a_slice_is_the_same_slice():
    device = NodeDevice(UUID, 0, "m", 150754820096, healthy=False)
    (ours,) = slices_of("node", "uid", [device], 1)
    (theirs,) = slices_of("node", "uid", [device], 5)
    (entry,) = theirs["spec"]["devices"]
    entry["capacity"]["coresPermille"]["value"] = "1k"
    entry["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert _told(ours) == _told(theirs)
    entry["capacity"]["coresPermille"]["value"] = "999"
    assert _told(ours) != _told(theirs)


def test_driver_versions_are_written_so_that_expressions_can_compare_them():
    assert [semantic_version(one) for one in ("580.65.06", "13.0", "9", "", "1.2.3.4", "x.1")] == [
        "580.65.6", "13.0.0", "9.0.0", "", "", ""
    ]  # fmt: skip


def test_a_pod_s_claims_are_those_named_and_those_made_for_it():
    pod = read_pod(
        {
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "resourceClaims": [
                    {"name": "a", "resourceClaimName": "named"},
                    {"name": "b", "resourceClaimTemplateName": "t"},
                ]
            },
            "status": {
                "phase": "Failed",
                "resourceClaimStatuses": [
                    {"name": "b", "resourceClaimName": "p-b-x1"},
                    {"name": "c"},
                ],
                "extendedResourceClaimStatus": {"resourceClaimName": "p-ext"},
            },
        }
    )
    assert pod == NodePod(
        "n", "p", "u", has_ended=True, claims=frozenset({"named", "p-b-x1", "p-ext"})
    )


def test_repeated_events_of_a_tenant_are_one_event_of_its_pod_with_a_count():
    told = Told(0, 1.0, 1.0, "")
    for at, count in ((10, 2), (20, 3)):
        event = agent_pb2.Event(tenant="t", event="deny", reason="too much")
        event.details = f'{{"count": {count}, "used_bytes": 1, "limit_bytes": 2, "last_bytes": 3}}'
        event.time.FromSeconds(at)
        told = told.and_then(event)
    assert (told.count, told.last_s) == (5, 20)
    assert told.message == "too much; 1 of 2 bytes were in use, 3 more were requested"
    pod = NodePod("n", "p" * 250, "u", has_ended=False, claims=frozenset())
    body = event_of(pod, agent_pb2.Tenant(labels={"penstock.io/owner": "o"}), "deny", told, "node")
    assert (body["reason"], body["type"], body["count"]) == ("VgpuMemoryDenied", "Warning", 5)
    assert len(body["metadata"]["name"]) <= 253
    assert body["lastTimestamp"] == "1970-01-01T00:00:20Z"


@given(some.text(max_size=50), some.text(max_size=2000))
def test_any_event_of_an_agent_becomes_a_short_message(details, reason):
    assert len(message_of(agent_pb2.Event(event="kill", reason=reason, details=details))) <= 1000


def a_grant(labels: dict[str, str]) -> Grant:
    share = DeviceGrant(UUID, 0, "m", 4 << 30, 300, 8 << 30, 0)
    return Grant("t", (share,), ("c",), "root", "2026-01-01", labels=labels)


@given(some.integers(1 << 20, 8 << 30), some.integers(1, 1000))
def test_a_tenant_may_be_resized_below_its_accounted_share_and_never_above_it(
    memory_bytes, cores_permille
):
    grant = a_grant(dict([accounted_label(UUID, 6 << 30, 500)]))
    change = Resize(memory_bytes=memory_bytes, cores_permille=cores_permille)
    if memory_bytes <= 6 << 30 and cores_permille <= 500:
        after, _ = resized(grant, change, list)
        assert after.devices[0].memory_bytes == memory_bytes
    else:
        with pytest.raises(PenstockError, match="accounted for 6Gi and 50 %") as refused:
            resized(grant, change, list)
        assert refused.value.reason == "not-allowed"
    resized(a_grant({}), change, list)  # nobody accounted for it: what is free may be had
    # and whoever accounts for it moves both, in one grant, wherever the quota was
    more = Resize(memory_bytes=memory_bytes, cores_permille=cores_permille, accounted=True)
    after, _ = resized(grant, more, list)
    (share,) = after.devices
    assert (share.memory_bytes, share.cores_permille) == (memory_bytes, cores_permille)
    assert after.labels == dict([accounted_label(UUID, memory_bytes, cores_permille)])
    with pytest.raises(PenstockError, match="memory or cores are missing"):
        Resize(memory_bytes=memory_bytes, accounted=True).check()


def test_malformed_accounts_of_a_share_allow_no_growth():
    grant = a_grant({f"accounted/{UUID}": "much"})
    with pytest.raises(PenstockError, match="correct the label"):
        resized(grant, Resize(cores_permille=400), list)


class SlowServer:
    """An API server without slices that answers writes only when the test lets it."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def list(self, *_: object, **__: object) -> tuple[list, str]:
        return [], "1"

    async def watch(self, *_: object, whole: bool = False, **__: object):
        if whole:
            raise ApiError("no watch begins with a list here", "", "", 422, "Invalid")
        await asyncio.Event().wait()
        yield

    async def create(self, _: object, one: dict) -> dict:
        self.asked.set()
        await self.answers.wait()
        return one


def test_a_node_s_slices_are_settled_when_the_server_has_answered_and_not_before() -> None:
    async def write() -> None:
        server = SlowServer()
        slices = Slices(server, "node-1")
        duties = [asyncio.create_task(slices.cache.run()), asyncio.create_task(slices.run())]
        slices.want("uid-1", (NodeDevice(UUID, 0, "NVIDIA H200", 140 << 30),))
        await asyncio.wait_for(server.asked.wait(), 10)
        assert not slices.is_settled
        server.answers.set()
        async with asyncio.timeout(10):
            while not slices.is_settled:
                await asyncio.sleep(0.01)
        for duty in duties:
            duty.cancel()
        await asyncio.gather(*duties, return_exceptions=True)

    asyncio.run(write())
