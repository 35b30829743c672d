"""Pod review: checks Pods that request vGPUs, and fills in defaults."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.names import (
    GROUP,
    HELD,
    KEPT,
    MANAGED,
    PLACED,
    RESIZE,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_TFLOPS,
    RESOURCES,
    RUNNING,
    SCHEDULER,
)
from penstock.kube.objects.opaque_parameters import milder_than
from penstock.kube.objects.privileges import privileged, runtime_apart
from penstock.kube.objects.resource_request import asked, containers, read_request
from penstock.kube.webhook.amount_bounds import bound_asks, bound_claim, filled
from penstock.kube.webhook.author_warnings import misspelt, more_devices
from penstock.kube.webhook.capabilities import review_powers
from penstock.kube.webhook.policy_warnings import annotate, bound_for, terms_of
from penstock.kube.webhook.suspension_warnings import deadlines
from penstock.kube.webhook.verdict import Verdict, pointer
from penstock.model import PenstockError, human_memory, listing, nearest
from penstock.policy.resolve import strictest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.kube.objects.api_client import Object
    from penstock.kube.quota.policy_bounds import Bound
    from penstock.kube.webhook.review_context import ReviewContext
    from penstock.scheduling.placement.pod_request import Request

DEFAULT_SCHEDULER = "default-scheduler"
OF_CLASSES = "deviceclass.resource.kubernetes.io/"  # resources that are claims (KEP-5004)
# Common mistakes for which the nearest spelling would suggest another resource.
MEANT = {"cores": RESOURCE_CORES, "gpu": RESOURCE_COUNT, "gpumem": RESOURCE_MEMORY}


async def review_new(
    pod: Object,
    namespace: str,
    around: ReviewContext,
    scheduler: str = SCHEDULER,
    *,
    job_deadline_s: object = None,
) -> Verdict:
    """Reviews a new Pod; `job_deadline_s` is the deadline of the Job that creates it, if any.

    Raises:
        ApiError: an object that the Pod refers to cannot be looked up.
    """
    verdict = Verdict()
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    _not_yet(annotations, verdict)
    by_resources = any(asked(one) for one, _, _ in containers(pod))
    if _goes_nowhere(pod, verdict, scheduler if by_resources else SCHEDULER):
        return verdict
    claims = await around.claims_of(pod, namespace)
    by_claims = claims.ours
    _claims_first(claims.missing, around, verdict)
    if not by_resources and not by_claims:
        return verdict
    if by_resources and by_claims:
        verdict.refuse(
            f"the Pod has the claim {next(iter(by_claims))} and requests penstock.io/… resources",
            "both request shares of devices, and each node serves only one of the two ways",
            "keep the claim if nodes publish ResourceSlices, otherwise the resources",
        )
    request = _amounts(pod, verdict)
    _placing(pod, scheduler if by_resources else "", verdict)
    await _privileges(pod, around, verdict)
    review_powers(pod, verdict)
    verdict.warnings += misspelt(annotations)
    bound = bound_for(pod, namespace, around, verdict)
    terms = terms_of(annotations, bound, verdict)
    if bound:
        bound_asks(request.asks if request else (), bound, verdict)
        await _bound_claims(by_claims, bound, around, verdict)
    if verdict.refusals:
        return verdict
    if request:
        _warn(request, bound, around, verdict)
    if terms.measured == "suspend" or await _claims_may_suspend(by_claims, bound, around):
        verdict.warnings += deadlines(pod, frozenset(by_claims), job_deadline_s)
    verdict.patch += _fill(pod, scheduler if by_resources else "", bound)
    if by_resources:
        verdict.patch += annotate(pod, terms)
    return verdict


def _claims_first(missing: Iterable[str], around: ReviewContext, verdict: Verdict) -> None:
    """Refuses a Pod whose claim is missing.

    If the claim came later, the existing Pod could get neither limits nor its readiness gate.
    """
    for name in missing:
        if around.has_other_drivers:  # the claim may be for one of them, and not concern us
            verdict.warnings.append(
                f"the Pod's claim {name} does not exist yet: if it will be for {GROUP}, the Pod "
                "will not start; create such a claim before its Pod"
            )
            continue
        verdict.refuse(
            f"neither the Pod's claim {name} nor a template for it exists",
            "a Pod's claims are checked when the Pod is created",
            "create the claim or the template first",
        )


async def _bound_claims(
    claims: Mapping[str, Object], bound: Bound, around: ReviewContext, verdict: Verdict
) -> None:
    largest = around.largest()
    for name, spec in claims.items():
        bound_claim(
            name, spec, bound, ours=await around.ours_of(spec),
            largest_bytes=largest[0] if largest else None, verdict=verdict,
        )  # fmt: skip
        with contextlib.suppress(PenstockError):  # reported when the claim was created
            for said in await around.parameters(spec):
                for what, most in milder_than(said.by_claim, bound.floor):
                    verdict.refuse(
                        f"claim {name} sets {what}", f"{bound} allows {most}",
                        "create the claim again without this setting",
                    )  # fmt: skip


def _goes_nowhere(pod: Object, verdict: Verdict, scheduler: str) -> bool:
    """Refuses a Pod that requests shares in a way this cluster does not serve.

    Returns whether it refused the Pod.
    """
    for one, _, _ in containers(pod):
        resources = one.get("resources") or {}
        for name in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}:
            if name.startswith(OF_CLASSES) and name.endswith(f".{GROUP}"):
                verdict.refuse(
                    f"the Pod requests {name}",
                    "Kubernetes turns this resource into a claim without the quantities you need",
                    "create a ResourceClaim",
                )
                return True
    if not scheduler:
        verdict.refuse(
            "the Pod requests penstock.io/… resources",
            "this cluster allocates shares only through claims",
            "create a ResourceClaim, or have the chart installed with way: both",
        )
    return not scheduler


def _not_yet(annotations: Mapping[str, str], verdict: Verdict) -> None:
    """Refuses annotations that a new Pod cannot have."""
    for name in (PLACED, HELD):
        if name in annotations:
            verdict.refuse(
                f"annotation {name} is not allowed",
                "only the scheduler decides which devices a Pod gets", "leave it out",
            )  # fmt: skip
    if RESIZE in annotations:
        verdict.refuse(
            f"annotation {RESIZE} is not allowed", "it resizes a running Pod, and this Pod is new",
            "write the quantities under limits",
        )  # fmt: skip


def review_change(old: Object, new: Object, user: str, scheduler_user: str) -> Verdict:
    """Reviews a change of a Pod."""
    verdict = Verdict()
    was, now = ((one.get("metadata") or {}).get("annotations") or {} for one in (old, new))
    for name in (PLACED, HELD):
        if was.get(name) != now.get(name) and user != scheduler_user:
            verdict.refuse(
                f"annotation {name} cannot be changed by {user}",
                "it records the allocated shares of devices, and only the scheduler writes it",
                f"leave it as it is; to resize the Pod, set {RESIZE}; to move the Pod, delete it",
            )
    for name in KEPT:
        if was.get(name) != now.get(name):
            verdict.refuse(
                f"annotation {name} cannot be changed",
                "it records a setting of the QuotaPolicy as of the Pod's creation",
                "leave it as it is; for another policy, create the Pod again",
            )
    if ((old.get("metadata") or {}).get("labels") or {}).get(MANAGED) != "true":
        return verdict
    if ((new.get("metadata") or {}).get("labels") or {}).get(MANAGED) != "true":
        verdict.refuse(
            f"label {MANAGED} cannot be changed", "drains use it to find Pods with shares",
            "leave it as it is",
        )  # fmt: skip
    for refusal in privileged(new):
        verdict.refuse(*refusal)
    return verdict


def review_binding(binding: Object, user: str, scheduler_user: str) -> Verdict:
    """Reviews a new Binding."""
    verdict = Verdict()
    annotations = (binding.get("metadata") or {}).get("annotations") or {}
    written = [name for name in (PLACED, HELD, *KEPT) if name in annotations]
    if written and user != scheduler_user:
        verdict.refuse(
            f"a Binding by {user} has the annotation {written[0]}",
            "only the scheduler decides which devices a Pod gets", "leave the Pod to its scheduler",
        )  # fmt: skip
    return verdict


def _amounts(pod: Object, verdict: Verdict) -> Request | None:
    for one, _, _ in containers(pod):
        resources = one.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in asked(one):
            if name not in RESOURCES:
                near = MEANT.get(name.partition("/")[2]) or nearest(name, RESOURCES)
                verdict.refuse(
                    f"container {one.get('name')} requests {name}",
                    "there is no such resource",
                    f"did you mean {near}?" if near else f"use {listing(sorted(RESOURCES))}",
                )
            elif name in requests and requests[name] != limits.get(name):
                verdict.refuse(
                    f"container {one.get('name')} requests {name}: {requests[name]}, with a limit "
                    f"of {limits.get(name, 'nothing')}",
                    "a share of a device is a quota, so both must be equal",
                    "write it once, under limits",
                )
    try:
        return None if verdict.refusals else read_request(pod)
    except PenstockError as error:
        verdict.refuse_for(error)
        return None


def _placing(pod: Object, scheduler: str, verdict: Verdict) -> None:
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        verdict.refuse(
            f"the Pod names node {spec['nodeName']}", "so no scheduler would choose its devices",
            "use nodeSelector: kubernetes.io/hostname, and leave nodeName to the scheduler",
        )  # fmt: skip
    wanted = spec.get("schedulerName") or DEFAULT_SCHEDULER
    if scheduler and wanted not in {DEFAULT_SCHEDULER, scheduler}:
        verdict.refuse(
            f"the Pod names the scheduler {wanted}", "it cannot place shares of devices",
            f"leave schedulerName out, or write {scheduler}",
        )  # fmt: skip


async def _privileges(pod: Object, around: ReviewContext, verdict: Verdict) -> None:
    for refusal in privileged(pod):
        verdict.refuse(*refusal)
    runtime_class = (pod.get("spec") or {}).get("runtimeClassName")
    if runtime_class and (apart := runtime_apart(await around.runtime(runtime_class))):
        verdict.refuse(*apart)


async def _claims_may_suspend(
    claims: dict[str, Object], bound: Bound | None, around: ReviewContext
) -> bool:
    theirs = bound.floor.measured if bound else None
    try:
        for spec in claims.values():
            for one in await around.parameters(spec):
                if strictest(one.by_class.measured, one.by_claim.measured, theirs) == "suspend":
                    return True
    except ApiError:
        raise
    except PenstockError:  # reported when the claim was created
        pass
    return False


def _warn(request: Request, bound: Bound | None, around: ReviewContext, verdict: Verdict) -> None:
    has_cores = bound is not None and bound.has_compute
    has_memory = bound is not None and bound.memory_bytes is not None
    largest = around.largest()
    for ask in request.asks:
        name = f"container {ask.container}"
        if ask.cores_permille is None and ask.tflops is None and not has_cores:
            verdict.warnings.append(
                f"{name} does not set {RESOURCE_CORES}: it gets all of a device's compute"
            )
        if ask.memory_bytes is None and not has_memory:
            verdict.warnings.append(
                f"{name} does not set {RESOURCE_MEMORY}: it gets all of a device's memory"
            )
        verdict.warnings += more_devices(name, ask.count, around.most_devices())
        if largest is None:
            continue
        memory_bytes, tflops = largest
        if ask.memory_bytes is not None and ask.memory_bytes > memory_bytes:
            verdict.warnings.append(
                f"{name} requests more memory than any device here has "
                f"({human_memory(memory_bytes, down=True)}): it waits for a node that has it"
            )
        if ask.tflops is not None and tflops and ask.tflops > tflops:
            verdict.warnings.append(
                f"{name} requests more {RESOURCE_TFLOPS} than any device here has ({tflops:g}): "
                "it waits for a node that has them"
            )


def _fill(pod: Object, scheduler: str, bound: Bound | None) -> Iterator[Object]:
    """Yields patches for what the Pod omits. Kubernetes requires a request next to each limit."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if "labels" not in metadata:
        yield {"op": "add", "path": "/metadata/labels", "value": {MANAGED: "true"}}
    elif metadata["labels"].get(MANAGED) != "true":
        yield {"op": "add", "path": pointer("metadata", "labels", MANAGED), "value": "true"}
    gate = {"conditionType": RUNNING}
    if not spec.get("readinessGates"):
        yield {"op": "add", "path": "/spec/readinessGates", "value": [gate]}
    elif gate not in spec["readinessGates"]:
        yield {"op": "add", "path": "/spec/readinessGates/-", "value": gate}
    if scheduler and spec.get("schedulerName") != scheduler:
        yield {"op": "add", "path": "/spec/schedulerName", "value": scheduler}
    for one, _, path in containers(pod):
        yield from _fill_container(one, path, filled(one, bound))


def _fill_container(one: Object, path: str, more: Mapping[str, str]) -> Iterator[Object]:
    for part in ("limits", "requests") if more else ():
        where = f"{path}/resources/{part}"
        if (one.get("resources") or {}).get(part) is None:
            yield {"op": "add", "path": where, "value": {**asked(one), **more}}
            continue
        for name, amount in more.items():
            yield {"op": "add", "path": where + pointer(name), "value": amount}
