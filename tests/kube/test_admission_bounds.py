"""No order in which objects come, and no word of a tenant's, makes less of a bound."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.kube.objects import Objects

from penstock.kube.kubelet.claim import ClaimRef, read_claim
from penstock.kube.kubelet.claim_checks import Scrutiny
from penstock.kube.objects.opaque_parameters import Parameters
from penstock.kube.quota.caps import Caps
from penstock.kube.quota.policies import holding, read_policy
from penstock.kube.quota.policy_bounds import bound_of
from penstock.kube.webhook.admission_review import Reviewer
from penstock.kube.webhook.claim_review import review_claim
from penstock.kube.webhook.publish import CONFIGURATIONS, SECRETS, Places, Publisher
from penstock.kube.webhook.review_context import ReviewContext
from penstock.kube.webhook.webhook_server import app
from penstock.model import PenstockError
from penstock.model.limits import STEPS
from penstock.node.admission.admit import Request
from penstock.node.agent.user_limits import Bounds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NAMESPACE = "team"
GIB = 1 << 30
HEAD = {"apiVersion": "penstock.io/v1alpha1", "kind": "VgpuParameters"}
GATE = {"readinessGates": [{"conditionType": "penstock.io/running"}]}
LABEL = {"penstock.io/vgpu": "true"}


def a_world(*, other_drivers: bool = False) -> Objects:
    made = Objects()
    ours = [{"cel": {"expression": 'device.driver == "penstock.io"'}}]
    made.put("deviceclasses", "vgpu.penstock.io", spec={"selectors": ours})
    if other_drivers:
        theirs = [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]
        made.put("deviceclasses", "theirs", spec={"selectors": theirs})
    return made


def a_policy(world: Objects, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
    selector = {"selector": {"matchLabels": labels}} if labels else {}
    spec = {"limits": {"memory": "8Gi", "cores": 30}, **selector, **spec}
    world.put("quotapolicies", name, NAMESPACE, spec=spec)


def claim_spec(
    exceed: dict[str, str] | None = None, device_class: str = "vgpu.penstock.io", **more: Any
) -> dict[str, Any]:
    capacity = {"requests": more.pop("amounts", {"memory": "8Gi", "coresPermille": "300"})}
    exactly = {"deviceClassName": device_class, "capacity": capacity, **more}
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if exceed is not None:
        opaque = {"driver": "penstock.io", "parameters": {**HEAD, "onExceed": exceed}}
        devices["config"] = [{"opaque": opaque}]
    return {"devices": devices}


def a_pod(claim: str = "claim", **more: Any) -> dict[str, Any]:
    metadata = {"name": "pod", "uid": "uid-pod", **more.pop("metadata", {})}
    container = {"name": "main", "resources": {"claims": [{"name": "gpu"}]}}
    container |= more.pop("container", {})
    claims = [{"name": "gpu", "resourceClaimName": claim}]
    return {"metadata": metadata, "spec": {"containers": [container], "resourceClaims": claims}}


def with_surroundings(world: Objects, do: Callable[[ReviewContext], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        around = ReviewContext(world)
        running = asyncio.create_task(around.run())
        try:
            nodes = any(plural == "nodes" for plural, *_ in world.kept)
            for _ in range(1000):
                if not around.unready() and not (nodes and around.largest() is None):
                    break
                await asyncio.sleep(0)
            return await do(around)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    return asyncio.run(work())


def reviewed(
    world: Objects,
    one: dict[str, Any],
    resource: str = "pods",
    *,
    may_patch: bool = True,
    floor: Parameters | None = None,
) -> dict[str, Any]:
    """The response."""
    request = {
        "uid": "u", "operation": "CREATE", "resource": {"resource": resource}, "object": one,
        "namespace": NAMESPACE, "userInfo": {"username": "somebody"},
    }  # fmt: skip

    async def ask(around: ReviewContext) -> Any:
        body = json.dumps({"request": request}).encode()
        return await Reviewer(around, floor=floor).answer(body, may_patch=may_patch)

    return with_surroundings(world, ask)["response"]


def refusal(*arguments: Any, **more: Any) -> str:
    return reviewed(*arguments, **more).get("status", {}).get("message", "")


# A Pod before its claim, a claim before its Pod.


def test_a_pod_before_its_claim_is_refused_where_all_claims_are_ours():
    world = a_world()
    why = "claim gpu is not there, nor is the template that it is made from"
    assert why in refusal(world, a_pod(container={"securityContext": {"privileged": True}}))
    by_template = a_pod()
    by_template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    assert why in refusal(world, by_template)
    world.put("resourceclaimtemplates", "t", NAMESPACE, spec={"spec": claim_spec()})
    assert refusal(world, by_template) == ""
    assert reviewed(world, by_template)["patch"]


def test_where_other_drivers_have_classes_it_is_let_in_with_a_warning():
    answer = reviewed(a_world(other_drivers=True), a_pod())
    assert answer["allowed"]
    assert "make such a claim before its Pod" in answer["warnings"][0]
    assert "patch" not in answer


def test_a_pod_that_lacks_what_it_is_given_is_refused_when_it_is_validated():
    """Its claim came between the two webhooks, or another webhook took the label away."""
    world = a_world()
    world.put("resourceclaims", "claim", NAMESPACE, spec=claim_spec())
    assert "create it again" in refusal(world, a_pod(), may_patch=False)
    whole = a_pod(metadata={"labels": LABEL})
    whole["spec"] |= GATE
    assert refusal(world, whole, may_patch=False) == ""


# Policies that match the same Pod.


def test_of_several_policies_the_strictest_word_of_each_holds_and_naming_one_adds_it():
    world = a_world()
    a_policy(world, "wide", {"app": "a"}, limits={"memory": "40Gi", "cores": 20},
             onExceed={"measured": "suspend", "grace": "1s"})  # fmt: skip
    a_policy(world, "narrow", {"tier": "b"}, limits={"memory": "1Gi", "cores": 90})
    a_policy(world, "usual")
    a_policy(world, "huge", {"never": "so"}, limits={"memory": "99Gi"})
    every = [read_policy(one) for (plural, *_), one in world.kept.items() if plural == POLICIES]
    both = bound_of(holding(every, {"app": "a", "tier": "b"}))
    assert (both.memory_bytes, both.cores_permille) == (GIB, 200)
    assert (both.measured, both.grace_ns) == ("terminate", 10**9)
    assert str(both) == "the strictest of QuotaPolicies team/narrow, team/wide"
    assert bound_of(holding(every, {}, "huge")).memory_bytes == 8 * GIB, "the default holds, too"
    assert bound_of(holding(every, {"tier": "b"}, "huge")).memory_bytes == GIB
    world.put("resourceclaims", "claim", NAMESPACE, spec=claim_spec())
    assert refusal(world, a_pod(metadata={"labels": {"app": "a"}})).endswith(
        "asks for coresPermille: 300: QuotaPolicy team/wide allows at most 200 of each device; ask "
        "for 200 or less, or have the policy changed"
    )
    said = refusal(world, a_pod(metadata={"labels": {"app": "a", "tier": "b"}}))
    assert "asks for memory: 8Gi" in said
    assert "asks for coresPermille: 300" in said


POLICIES = "quotapolicies"


def test_policies_that_cannot_be_compared_or_read_refuse_the_pod():
    world = a_world()
    world.put("resourceclaims", "claim", NAMESPACE, spec=claim_spec())
    a_policy(world, "cores", {"app": "a"})
    a_policy(world, "tflops", {"app": "a"}, limits={"tflops": 10})
    said = refusal(world, a_pod(metadata={"labels": {"app": "a"}}))
    assert "bound compute in cores and in TFLOPS" in said
    a_policy(world, "bad", {"app": "b"}, limits={"cores": 150})
    assert "bad is not valid" in refusal(world, a_pod(metadata={"labels": {"app": "b"}}))


LABELS = some.dictionaries(some.sampled_from("abc"), some.just("x"), max_size=3)
LIMITS = some.fixed_dictionaries({
    "memory": some.integers(1, 64).map(lambda n: f"{n}Gi"), "cores": some.integers(1, 100),
})  # fmt: skip
EXCEED = some.fixed_dictionaries(
    {"measured": some.sampled_from(STEPS), "grace": some.sampled_from(["0s", "5s", "60s", "24h"])}
)


@settings(deadline=None, max_examples=200)
@given(
    several=some.lists(some.tuples(LABELS, LIMITS, EXCEED), min_size=1, max_size=4),
    labels=LABELS, more=LABELS, named=some.integers(0, 4),
)  # fmt: skip
def test_neither_a_label_more_nor_a_name_lifts_what_selects_a_pod(several, labels, more, named):
    world = Objects()
    for at, (selector, limits, exceed) in enumerate(several):
        a_policy(world, f"p{at}", selector, limits=limits, onExceed=exceed)
    every = [read_policy(one) for one in world.kept.values()]
    selecting = [
        one for one in every if one.labels and one.labels.items() <= labels.items()
    ]  # fmt: skip
    before = bound_of(selecting)
    name = f"p{named}" if named < len(several) else ""
    after = bound_of(holding(every, {**labels, **more}, name))
    if before is not None:
        assert after.memory_bytes <= before.memory_bytes
        assert after.cores_permille <= before.cores_permille
        assert STEPS.index(after.measured) >= STEPS.index(before.measured)
        assert after.grace_ns <= before.grace_ns
    unnamed = bound_of(holding(every, labels))
    if unnamed is not None:
        assert bound_of(holding(every, labels, name)).memory_bytes <= unnamed.memory_bytes


# What claims say of enforcement.


FLOOR = Parameters(measured="terminate", grace_ns=60 * 10**9)


@pytest.mark.parametrize(
    ("exceed", "why"),
    [
        ({"measured": "deny"}, "onExceed.measured: deny: here it is terminate or stricter"),
        ({"grace": "24h"}, "onExceed.grace: 24h: here it is at most 1m"),
        ({"measured": "terminate", "grace": "60s"}, ""),
        ({}, ""),
    ],
)
def test_a_claim_milder_than_the_chart_s_values_is_refused(exceed, why):
    spec = claim_spec(exceed)
    said = refusal(a_world(), {"spec": spec}, "resourceclaims", floor=FLOOR)
    assert why in said
    assert bool(said) == bool(why)
    template = {"spec": {"spec": spec}}
    assert why in refusal(a_world(), template, "resourceclaimtemplates", floor=FLOOR)


def test_a_device_class_may_be_milder_and_a_claim_of_it_not_milder_still():
    world = a_world()
    opaque = {"driver": "penstock.io", "parameters": {**HEAD, "onExceed": {"measured": "suspend"}}}
    config = [{"opaque": opaque}]
    selectors = [{"cel": {"expression": 'device.driver == "penstock.io"'}}]
    world.put("deviceclasses", "patient", spec={"selectors": selectors, "config": config})
    suspends = {"spec": claim_spec({"measured": "suspend"}, "patient")}
    assert refusal(world, suspends, "resourceclaims", floor=FLOOR) == ""
    denies = {"spec": claim_spec({"measured": "deny"}, "patient")}
    assert "suspend or stricter" in refusal(world, denies, "resourceclaims", floor=FLOOR)


def test_an_agent_holds_what_no_administrator_said_to_its_bounds_for_users():
    bounds = Bounds("throttle", 60 * 10**9)
    mild = Request(("x",), None, None, measured="deny", grace_ns=24 * 3600 * 10**9)
    assert bounds.bounded(mild) == mild
    both = bounds.bounded(
        Request(("x",), None, None, measured="deny", grace_ns=24 * 3600 * 10**9,
                bound_measured=True, bound_grace=True)
    )  # fmt: skip
    assert (both.measured, both.grace_ns) == ("throttle", 60 * 10**9)
    strict = Request(("x",), None, None, measured="terminate", grace_ns=1, bound_measured=True)
    assert bounds.bounded(strict).measured == "terminate"


# Amounts.


@pytest.mark.parametrize("memory", ["1e30", "9223372036854775808", "8Ei"])
def test_memory_that_a_scheduler_would_count_as_nothing_is_refused(memory):
    spec = claim_spec(amounts={"memory": memory})
    said = with_surroundings(a_world(), lambda around: review_claim(spec, around))
    assert "memory is at most 9223372036854775807 bytes" in said.refusals[0]


def test_an_amount_that_a_claim_leaves_out_is_bounded_too():
    world = a_world()
    a_policy(world, "usual")
    device = {"uuid": "GPU-1", "index": 0, "model": "m", "memory_bytes": 80 * GIB,
              "cores_permille": 1000}  # fmt: skip
    annotations = {"penstock.io/devices": json.dumps([device])}
    world.put("nodes", "n", metadata={"annotations": annotations})
    world.put("resourceclaims", "claim", NAMESPACE, spec=claim_spec(amounts={}))
    said = refusal(world, a_pod())
    assert "says no memory, and would get an eighth of the device" in said
    assert "coresPermille" not in said, "an eighth is within 30 %"


def test_a_cap_of_devices_is_not_passed_by_asking_for_all_of_them():
    world = a_world()
    world.put("quotacaps", "default", NAMESPACE, spec={"hard": {"vgpus": 10}})
    spec = claim_spec(allocationMode="All")
    claim = {"metadata": {"uid": "c", "name": "c"}, "spec": spec}
    (why,) = asyncio.run(further(world, claim))
    assert "allocationMode All takes as many devices as the node has: ask for a count" in why


async def further(
    world: Objects, one: dict[str, Any], *, dry_run: bool = False, resource: str = "resourceclaims"
) -> list[str]:
    caps = Caps(world)
    running = asyncio.create_task(caps.run())
    async with asyncio.timeout(10):
        while not caps.is_ready:
            await asyncio.sleep(0)
    request = {
        "operation": "CREATE", "resource": {"resource": resource}, "namespace": NAMESPACE,
        "object": one, "dryRun": dry_run,
    }  # fmt: skip
    try:
        return await caps.further(request)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_second_word_never_lowers_an_entry_and_a_dry_run_writes_none():
    world = a_world()
    world.put("quotacaps", "default", NAMESPACE, spec={"hard": {"vgpus": 10}})

    def pending() -> dict[str, Any]:
        return world.kept["quotacaps", NAMESPACE, "default"].get("status", {}).get("pending", {})

    def asks(count: int, *, dry_run: bool = False) -> list[str]:
        claim = {"metadata": {"uid": "c", "name": "c"}, "spec": claim_spec(count=count)}
        return asyncio.run(further(world, claim, dry_run=dry_run))

    assert asks(10, dry_run=True) == []
    assert world.asked["replace quotacaps"] == 0
    assert asks(10) == []
    assert asks(1) == []
    assert pending()["c"]["vgpus"] == 10
    assert asks(11), "nor is it raised above the cap"
    assert pending()["c"]["vgpus"] == 10


def test_a_claim_of_many_alternatives_costs_the_api_server_a_few_looks():
    world = a_world()
    alternatives = [
        {"name": f"a{n}", "deviceClassName": "vgpu.penstock.io", "capacity": {"requests": {}}}
        for n in range(8)
    ]
    requests = [{"name": f"r{n}", "firstAvailable": alternatives} for n in range(32)]
    claim = {"spec": {"devices": {"requests": requests}}}
    assert refusal(world, claim, "resourceclaims") == ""
    assert world.asked["get deviceclasses"] == 0
    for at, request in enumerate(requests):
        request["firstAvailable"] = [
            {**one, "deviceClassName": f"none-{at}-{one['name']}"} for one in alternatives
        ]
    said = refusal(world, claim, "resourceclaims")
    assert "names 256 device classes that do not exist" in said
    assert world.asked["get deviceclasses"] == 0


# On the node, when the claim is prepared.


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


def test_a_pod_that_the_webhook_did_not_complete_gets_nothing_but_where_it_does_not_look():
    world = a_world()
    pod = a_pod(container={"securityContext": {"privileged": True}})
    world.put("pods", "pod", NAMESPACE, metadata=pod["metadata"], spec=pod["spec"])
    with pytest.raises(PenstockError, match="make the Pod anew, after its claim"):
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
def test_a_pod_that_may_have_no_share_is_refused_again_on_the_node(changes, why):
    world = a_world()
    a_policy(world, "small", {"app": "small"}, limits={"memory": "1Gi"})
    seen_pod(world)
    assert prepared(world).shares
    seen_pod(world, **changes)
    with pytest.raises(PenstockError, match=why):
        prepared(world)


def test_a_runtime_on_a_kernel_of_its_own_is_refused_again_on_the_node():
    world = a_world()
    world.put("runtimeclasses", "micro", handler="kata-qemu")
    seen_pod(world)
    world.kept["pods", NAMESPACE, "pod"]["spec"]["runtimeClassName"] = "micro"
    with pytest.raises(PenstockError, match="runs containers by kata-qemu"):
        prepared(world)


def opaque(source: str, **exceed: str) -> dict[str, Any]:
    parameters = {**HEAD, "onExceed": exceed}
    return {"source": source, "opaque": {"driver": "penstock.io", "parameters": parameters}}


def test_a_claim_s_words_are_only_stricter_than_those_of_its_class_and_of_policies():
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


# Who asks the webhook.


def hooks(world: Objects) -> list[dict[str, Any]]:
    return [
        hook
        for kind in CONFIGURATIONS
        for hook in world.kept[kind.plural, "", "penstock"]["webhooks"]
    ]


def test_only_who_knows_the_word_is_answered_and_replicas_have_the_same_one():
    world = a_world()
    service = {"namespace": "p", "name": "admit", "port": 443}
    for kind in CONFIGURATIONS:
        one = {"name": "claims.penstock.io", "clientConfig": {"service": dict(service)}}
        world.put(kind.plural, "penstock", webhooks=[one])
    places = Places("p", "admit", "penstock", ("a.svc",))

    async def work(around: ReviewContext) -> None:
        several = [
            Publisher(world, places, lambda _: None, lambda *_, **__: None, others=lambda: {"b"})
            for _ in range(2)
        ]
        served = app(Reviewer(around), lambda: "", lambda: several[0].word)
        async with TestClient(TestServer(served)) as client:
            body = json.dumps({"request": {"uid": "u", "operation": "DELETE"}})
            for path in ("/validate", "/validate/", "/validate/x", "/mutate"):
                assert (await client.post(path, data=body)).status == 404, "before it is known"
            for one in several:
                await one.look()
            assert several[0].word == several[1].word
            mutate, validate = (hook["clientConfig"]["service"]["path"] for hook in hooks(world))
            assert (mutate, validate) == tuple(
                f"/{act}/{several[0].word}" for act in ("mutate", "validate")
            )
            assert len(several[0].word) >= 64
            for path in (mutate, validate):
                answer = await (await client.post(path, data=body)).json()
                assert answer["response"]["allowed"]
            for path in ("/validate", "/mutate", f"{validate[:-1]}x", "/validate/\u00e9"):
                assert (await client.post(path, data=body)).status == 404, path

    with_surroundings(world, work)
    assert "word" in world.kept[SECRETS.plural, "p", "admit"]["data"]
    assert 'in ["b"]' in hooks(world)[1]["matchConditions"][0]["expression"]
