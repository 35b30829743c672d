"""QuotaPolicy custom resources: those that apply to a Pod, and their status.

A policy applies to the Pods of its namespace that its selector matches, or that name it (annotation
`penstock.io/policy`). A policy without a selector is the namespace's default, which applies to Pods
with vGPUs that no other policy selects. If several policies apply to a Pod, the strictest value of
each setting wins (`policy_bounds`). A workload is scaled by one policy, or not at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import Kind
from penstock.model import PenstockError, nearest
from penstock.policy import PolicyError, load_text
from penstock.policy.document import format_path
from penstock.policy.schema import API_VERSION, KIND

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.kube.objects.api_client import Object
    from penstock.kube.objects.workloads import Pod, Workload
    from penstock.policy.schema import Spec

POLICIES = Kind(API_VERSION, "quotapolicies")
MOST_NAMES = 5  # of Pods or policies that a status or an error lists


@dataclass(frozen=True)
class Policy:
    """A QuotaPolicy."""

    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    labels: Mapping[str, str] | None  # its selector; None if it is the namespace's default
    spec: Spec | None  # None if it is not valid
    problem: str  # why it is not valid
    status: Object = field(compare=False)

    def __str__(self) -> str:
        return f"QuotaPolicy {self.namespace}/{self.name}"


def read_policy(one: Object) -> Policy:
    """Reads a QuotaPolicy object, and checks it like a policy file, beyond the CRD schema."""
    metadata = one["metadata"]
    selector = (one.get("spec") or {}).get("selector") or {}
    spec, problem = None, ""
    try:
        spec = _spec(metadata["name"], one.get("spec"))
    except PolicyError as error:
        problem = "; ".join(
            f"{format_path(each.path)}: {each.message}" if each.path else each.message
            for each in error.problems
        )
    return Policy(
        metadata.get("namespace", ""),
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        metadata.get("generation", 0),
        selector.get("matchLabels"),
        spec,
        problem,
        one.get("status") or {},
    )


def _spec(name: str, plain: object) -> Spec:
    """Parses the spec of a policy. Raises `PolicyError`."""
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": plain}
    return load_text(json.dumps(document, ensure_ascii=False), name)[0].policy.spec


def matching(
    policies: Iterable[Policy], labels: Mapping[str, str], named: str, *, asks: bool
) -> list[Policy]:
    """The policies of a namespace that select a workload or Pod.

    If it names a policy, this policy takes precedence over those that select it by labels. A
    workload with several policies is not scaled.
    """
    if named:
        return [one for one in policies if one.name == named]
    every = list(policies)
    selecting = [
        one
        for one in every
        if one.labels is not None and all(labels.get(k) == v for k, v in one.labels.items())
    ]
    if selecting or not asks:
        return selecting
    return [one for one in every if one.labels is None]


def holding(
    policies: Collection[Policy], labels: Mapping[str, str], named: str = ""
) -> list[Policy]:
    """All policies that apply to a Pod with vGPUs, which cannot opt out of any of them.

    Raises:
        PenstockError: the Pod names a policy that does not exist.
    """
    found = matching(policies, labels, "", asks=True)
    if not named:
        return found
    if named not in {one.name for one in policies}:
        names = sorted(one.name for one in policies)
        near = nearest(named, names)
        have = f"it has {', '.join(names[:MOST_NAMES])}" if names else "it has no QuotaPolicies"
        raise PenstockError(
            f"no QuotaPolicy named {named!r} in this namespace", have,
            f"did you mean {near}?" if near else "name an existing policy, or create it first",
        )  # fmt: skip
    return [*found, *(one for one in policies if one.name == named and one not in found)]


@dataclass
class Reach:
    """The Pods and workloads to which the policies of one namespace apply."""

    # By policy: the sorted names of the Pods to which no other policy applies.
    pods: dict[str, list[str]] = field(default_factory=dict)
    targets: dict[str, list[Workload]] = field(default_factory=dict)
    # By policy, then by rival policy: an example of an object that both select.
    rivals: dict[str, dict[str, str]] = field(default_factory=dict)


def reach(
    policies: Sequence[Policy], pods: Iterable[tuple[Pod, bool]], workloads: Iterable[Workload]
) -> Reach:
    """Computes the reach of a namespace's policies.

    `pods` contains each Pod, and whether it requests vGPUs.
    """
    found = Reach(
        {one.name: [] for one in policies},
        {one.name: [] for one in policies},
        {one.name: {} for one in policies},
    )
    _always_both(policies, found)
    for pod, asks in pods:
        mine = matching(policies, pod.labels, pod.policy, asks=asks)
        if len(mine) == 1:
            found.pods[mine[0].name].append(pod.name)
        _note(mine, f"Pod {pod.name}", found)
    for workload in workloads:
        mine = matching(policies, workload.labels, workload.policy, asks=workload.asks)
        if len(mine) == 1:
            found.targets[mine[0].name].append(workload)
        _note(mine, f"{workload.kind} {workload.name}", found)
    for names in found.pods.values():
        names.sort()
    return found


def _note(mine: Sequence[Policy], example: str, found: Reach) -> None:
    if len(mine) > 1:
        for one in mine:
            for other in mine:
                if other is not one:
                    found.rivals[one.name].setdefault(other.name, example)


def _always_both(policies: Sequence[Policy], found: Reach) -> None:
    """Finds policies that select everything another selects, before the first Pod exists."""
    for one in policies:
        for other in policies:
            if one is other or (one.labels is None) != (other.labels is None):
                continue
            if (one.labels or {}).items() >= (other.labels or {}).items():
                _note([one, other], "every Pod that it selects", found)


def status_of(policy: Policy, found: Reach, targets: Sequence[Object]) -> Object:
    """The policy's new status, in which an unchanged condition keeps its transition time."""
    names = found.pods.get(policy.name, [])
    rivals = found.rivals.get(policy.name, {})
    if policy.spec is None:
        ready, reason, message = "False", "Invalid", policy.problem
    elif rivals:
        also = "; ".join(f"{name} ({example})" for name, example in sorted(rivals.items()))
        ready, reason = "False", "Conflict"
        message = (
            f"other policies select the same objects: {also}; the strictest values apply to such "
            "Pods, and such workloads are not scaled; narrow the selectors so that they do not "
            "overlap"
        )
    else:
        ready, reason = "True", "InForce"
        message = f"applies to {len(names)} Pod{'s' * (len(names) != 1)}"
    status: Object = {
        "observedGeneration": policy.generation,
        "conditions": [_condition(policy, ready, reason, message)],
        "pods": {"count": len(names), "names": names[:MOST_NAMES]},
    }
    if targets:
        status["targets"] = list(targets)
    return status


def _condition(policy: Policy, status: str, reason: str, message: str) -> Object:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    before: Object = next(
        (one for one in policy.status.get("conditions") or [] if one.get("type") == "Ready"), {}
    )
    since = before.get("lastTransitionTime", now) if before.get("status") == status else now
    return {
        "type": "Ready",
        "status": status,
        "observedGeneration": policy.generation,
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }
