"""Bounds of admission: no order of objects and no value that a tenant writes loosens one."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.kube.support.objects import Objects

from penstock.kube.quota.caps import Caps
from penstock.kube.quota.policies import holding, read_policy
from penstock.kube.quota.policy_bounds import bound_of
from penstock.kube.webhook.admission_review import Reviewer
from penstock.kube.webhook.claim_review import review_claim
from penstock.kube.webhook.publish import CONFIGURATIONS, SECRETS, Places, Publisher
from penstock.kube.webhook.webhook_server import app
from penstock.model.terms import STEPS
from penstock.node.admission.admit import Request
from penstock.node.agent.user_limits import Bounds
from penstock.policy.resolve import Settings

if TYPE_CHECKING:
    from penstock.kube.webhook.review_context import ReviewContext
from tests.kube.support.reviews import (
    GATE,
    GIB,
    HEAD,
    LABEL,
    NAMESPACE,
    a_pod,
    a_policy,
    a_world,
    claim_spec,
    refusal,
    reviewed,
    with_surroundings,
)

# A Pod before its claim, a claim before its Pod.


def test_a_pod_before_its_claim_is_refused_where_all_claims_are_ours():
    world = a_world()
    why = "neither the Pod's claim gpu nor a template for it exists"
    assert why in refusal(world, a_pod(container={"securityContext": {"privileged": True}}))
    by_template = a_pod()
    by_template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    assert why in refusal(world, by_template)
    world.put("resourceclaimtemplates", "t", NAMESPACE, spec={"spec": claim_spec()})
    assert refusal(world, by_template) == ""
    assert reviewed(world, by_template)["patch"]


def test_a_pod_before_its_claim_is_admitted_with_a_warning_where_other_drivers_have_classes():
    answer = reviewed(a_world(other_drivers=True), a_pod())
    assert answer["allowed"]
    assert "create such a claim before its Pod" in answer["warnings"][0]
    assert "patch" not in answer


def test_a_pod_that_lost_what_the_mutating_webhook_added_is_refused_by_the_validating_one():
    """Its claim was made between the two webhooks, or another webhook removed the label."""
    world = a_world()
    world.put("resourceclaims", "claim", NAMESPACE, spec=claim_spec())
    assert "create the Pod again" in refusal(world, a_pod(), may_patch=False)
    whole = a_pod(metadata={"labels": LABEL})
    whole["spec"] |= GATE
    assert refusal(world, whole, may_patch=False) == ""


# Policies that match the same Pod.


def test_of_several_policies_the_strictest_value_of_each_key_holds_and_naming_one_adds_it():
    world = a_world()
    a_policy(world, "wide", {"app": "a"}, limits={"memory": "40Gi", "cores": 20},
             onExceed={"measured": "suspend", "grace": "1s"})  # fmt: skip
    a_policy(world, "narrow", {"tier": "b"}, limits={"memory": "1Gi", "cores": 90})
    a_policy(world, "usual")
    a_policy(world, "huge", {"never": "so"}, limits={"memory": "99Gi"})
    every = [read_policy(one) for (plural, *_), one in world.kept.items() if plural == POLICIES]
    both = bound_of(holding(every, {"app": "a", "tier": "b"}))
    assert (both.memory_bytes, both.cores_permille) == (GIB, 200)
    assert (both.floor.measured, both.floor.grace_ns) == ("terminate", 10**9)
    assert str(both) == "the strictest of QuotaPolicies team/narrow, team/wide"
    assert bound_of(holding(every, {}, "huge")).memory_bytes == 8 * GIB, "the default holds, too"
    assert bound_of(holding(every, {"tier": "b"}, "huge")).memory_bytes == GIB
    world.put("resourceclaims", "claim", NAMESPACE, spec=claim_spec())
    assert refusal(world, a_pod(metadata={"labels": {"app": "a"}})).endswith(
        "requests coresPermille: 300: QuotaPolicy team/wide allows at most 200 of each device; "
        "request 200 or less, or have the policy changed"
    )
    said = refusal(world, a_pod(metadata={"labels": {"app": "a", "tier": "b"}}))
    assert "requests memory: 8Gi" in said
    assert "requests coresPermille: 300" in said


POLICIES = "quotapolicies"


def test_policies_that_cannot_be_compared_or_read_refuse_the_pod():
    world = a_world()
    world.put("resourceclaims", "claim", NAMESPACE, spec=claim_spec())
    a_policy(world, "cores", {"app": "a"})
    a_policy(world, "tflops", {"app": "a"}, limits={"tflops": 10})
    said = refusal(world, a_pod(metadata={"labels": {"app": "a"}}))
    assert "bound compute in both cores and TFLOPS" in said
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
def test_neither_more_labels_nor_naming_a_policy_loosens_the_policies_that_select_a_pod(
    several, labels, more, named
):
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
        assert STEPS.index(after.floor.measured) >= STEPS.index(before.floor.measured)
        assert after.floor.grace_ns <= before.floor.grace_ns
    unnamed = bound_of(holding(every, labels))
    if unnamed is not None:
        assert bound_of(holding(every, labels, name)).memory_bytes <= unnamed.memory_bytes


# What claims say of enforcement.


FLOOR = Settings(measured="terminate", grace_ns=60 * 10**9)


@pytest.mark.parametrize(
    ("exceed", "why"),
    [
        (
            {"measured": "deny"},
            "onExceed.measured: deny: administrators of this cluster allow terminate or stricter",
        ),
        ({"grace": "24h"}, "onExceed.grace: 24h: administrators of this cluster allow at most 1m"),
        ({"measured": "terminate", "grace": "60s"}, ""),
        ({}, ""),
    ],
)
def test_a_claim_with_milder_enforcement_than_the_charts_values_is_refused(exceed, why):
    spec = claim_spec(exceed)
    said = refusal(a_world(), {"spec": spec}, "resourceclaims", floor=FLOOR)
    assert why in said
    assert bool(said) == bool(why)
    template = {"spec": {"spec": spec}}
    assert why in refusal(a_world(), template, "resourceclaimtemplates", floor=FLOOR)


def test_a_device_class_may_be_milder_than_the_chart_and_its_claims_no_milder_than_the_class():
    world = a_world()
    opaque = {"driver": "penstock.io", "parameters": {**HEAD, "onExceed": {"measured": "suspend"}}}
    config = [{"opaque": opaque}]
    selectors = [{"cel": {"expression": 'device.driver == "penstock.io"'}}]
    world.put("deviceclasses", "patient", spec={"selectors": selectors, "config": config})
    suspends = {"spec": claim_spec({"measured": "suspend"}, "patient")}
    assert refusal(world, suspends, "resourceclaims", floor=FLOOR) == ""
    denies = {"spec": claim_spec({"measured": "deny"}, "patient")}
    assert "suspend or stricter" in refusal(world, denies, "resourceclaims", floor=FLOOR)


def test_an_agent_applies_its_bounds_for_users_to_what_no_administrator_set():
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
def test_memory_that_overflows_in_a_scheduler_is_refused(memory):
    spec = claim_spec(amounts={"memory": memory})
    said = with_surroundings(a_world(), lambda around: review_claim(spec, around))
    assert "the maximum is 9223372036854775807 bytes" in said.refusals[0]


def test_an_amount_that_a_claim_leaves_out_is_bounded_too():
    world = a_world()
    a_policy(world, "usual")
    device = {"uuid": "GPU-1", "index": 0, "model": "m", "memory_bytes": 80 * GIB,
              "cores_permille": 1000}  # fmt: skip
    annotations = {"penstock.io/devices": json.dumps([device])}
    world.put("nodes", "n", metadata={"annotations": annotations})
    world.put("resourceclaims", "claim", NAMESPACE, spec=claim_spec(amounts={}))
    said = refusal(world, a_pod())
    assert "does not set memory, and would get an eighth of the device" in said
    assert "coresPermille" not in said, "an eighth is within 30 %"


def test_a_claim_for_all_devices_of_a_node_is_refused_where_a_cap_counts_devices():
    world = a_world()
    world.put("quotacaps", "default", NAMESPACE, spec={"hard": {"vgpus": 10}})
    spec = claim_spec(allocationMode="All")
    claim = {"metadata": {"uid": "c", "name": "c"}, "spec": spec}
    (why,) = asyncio.run(further(world, claim))
    assert "allocationMode All takes as many devices as the node has: request a count" in why


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


def test_a_second_request_never_lowers_a_pending_entry_and_a_dry_run_writes_none():
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


def test_a_claim_of_many_alternatives_costs_the_api_server_few_requests():
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


# Who asks the webhook.


def hooks(world: Objects) -> list[dict[str, Any]]:
    return [
        hook
        for kind in CONFIGURATIONS
        for hook in world.kept[kind.plural, "", "penstock"]["webhooks"]
    ]


def test_only_callers_that_know_the_secret_path_are_answered_and_replicas_share_it():
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
