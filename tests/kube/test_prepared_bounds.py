"""Bounds that the node applies again when a claim is prepared."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.kube.kubelet.claim import ClaimRef, read_claim
from penstock.kube.kubelet.claim_checks import Scrutiny
from penstock.model import PenstockError

if TYPE_CHECKING:
    from tests.kube.support.objects import Objects
from tests.kube.support.reviews import GATE, HEAD, LABEL, NAMESPACE, a_pod, a_policy, a_world


def prepared(
    world: Objects,
    *,
    share: dict[str, str] | None = None,
    config: list[Any] | None = None,
    unseen: frozenset[str] | None = frozenset({"kube-system"}),
) -> Any:
    result = {
        "request": "gpu", "driver": "penstock.io", "pool": "node", "device": "gpu-1",
        "consumedCapacity": share or {"memory": "8Gi", "coresPermille": "300"},
    }  # fmt: skip
    claim = {
        "metadata": {"name": "claim", "namespace": NAMESPACE, "uid": "uid-claim"},
        "status": {
            "allocation": {"devices": {"results": [result], "config": config or []}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "uid-pod"}],
        },
    }
    granted = read_claim(claim, ClaimRef(NAMESPACE, "claim", "uid-claim"), "node")
    found = asyncio.run(Scrutiny(world, unseen).look(claim, granted, {}))
    return found.allocation({"gpu-1": "GPU-1"})


def seen_pod(world: Objects, **more: Any) -> None:
    pod = a_pod(**more)
    pod["spec"] |= GATE
    pod["metadata"]["labels"] = {**LABEL, **pod["metadata"].get("labels", {})}
    world.put("pods", "pod", NAMESPACE, metadata=pod["metadata"], spec=pod["spec"])


def test_a_pod_that_the_webhook_did_not_complete_gets_a_share_only_in_exempt_namespaces():
    world = a_world()
    pod = a_pod(container={"securityContext": {"privileged": True}})
    world.put("pods", "pod", NAMESPACE, metadata=pod["metadata"], spec=pod["spec"])
    with pytest.raises(PenstockError, match="create the Pod again, after its claim"):
        prepared(world)
    with pytest.raises(PenstockError, match="is privileged"):
        prepared(world, unseen=None)
    assert prepared(world, unseen=frozenset({NAMESPACE}))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"container": {"securityContext": {"privileged": True}}}, "is privileged"),
        ({"metadata": {"labels": {"app": "small"}}}, "has 8Gi of a device.*small allows 1Gi"),
        ({"metadata": {"uid": "another"}}, "none of the Pods"),
    ],
)
def test_a_pod_that_may_not_have_its_share_is_refused_on_the_node_too(changes, why):
    world = a_world()
    a_policy(world, "small", {"app": "small"}, limits={"memory": "1Gi"})
    seen_pod(world)
    assert prepared(world).shares
    seen_pod(world, **changes)
    with pytest.raises(PenstockError, match=why):
        prepared(world)


def test_a_runtime_with_a_kernel_of_its_own_is_refused_on_the_node_too():
    world = a_world()
    world.put("runtimeclasses", "micro", handler="kata-qemu")
    seen_pod(world)
    world.kept["pods", NAMESPACE, "pod"]["spec"]["runtimeClassName"] = "micro"
    with pytest.raises(PenstockError, match="runs containers in the sandbox kata-qemu"):
        prepared(world)


def opaque(source: str, **exceed: str) -> dict[str, Any]:
    parameters = {**HEAD, "onExceed": exceed}
    return {"source": source, "opaque": {"driver": "penstock.io", "parameters": parameters}}


def test_a_claims_enforcement_only_tightens_that_of_its_class_and_of_policies():
    world = a_world()
    seen_pod(world, metadata={"labels": {"app": "patient"}})
    mild = opaque("FromClaim", measured="deny", grace="24h")
    alone = prepared(world, config=[mild])
    assert (alone.measured, alone.bound_measured, alone.bound_grace) == ("deny", True, True)
    of_class = prepared(world, config=[mild, opaque("FromClass", measured="suspend")])
    assert (of_class.measured, of_class.bound_measured) == ("suspend", False)
    assert of_class.bound_grace, "of that the class said nothing"
    exceed = {"measured": "throttle", "grace": "20s"}
    a_policy(world, "patient", {"app": "patient"}, onExceed=exceed)
    held = prepared(world, config=[mild])
    assert (held.measured, held.grace_ns) == ("throttle", 20 * 10**9)
    assert not held.bound_measured
    assert not held.bound_grace
    strict = prepared(world, config=[opaque("FromClaim", measured="terminate", grace="1s")])
    assert (strict.measured, strict.grace_ns) == ("terminate", 10**9)
