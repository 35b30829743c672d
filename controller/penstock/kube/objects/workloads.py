"""Pods and workloads, reduced to the fields that policies, scaling and `explain` need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import Kind
from penstock.kube.objects.device_amounts import FINISHED, Amounts, asks_for_vgpus, of_pod
from penstock.kube.objects.names import GROUP, POLICY, RUNNING
from penstock.kube.objects.quantity import parse_quantity
from penstock.model import QuantityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kube.objects.api_client import Object

DEPLOYMENTS = Kind("apps/v1", "deployments")
STATEFUL_SETS = Kind("apps/v1", "statefulsets")
AUTOSCALERS = Kind("autoscaling/v2", "horizontalpodautoscalers")
KINDS = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS}

# Annotations of workloads that are scaled by requests a second: the URL of a page in Prometheus'
# text format, and the metric on that page. If the URL has "{pod}" in place of the address, each Pod
# has its own page; otherwise one page covers all Pods together.
QPS_URL = f"{GROUP}/qps-url"
QPS_METRIC = f"{GROUP}/qps-metric"


@dataclass(frozen=True)
class Pod:
    """A Pod that is not finished."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    policy: str  # the policy it names; empty if policies select it by its labels
    asks: Amounts  # requested as extended resources
    claims: tuple[tuple[str, str], ...]  # name in the Pod, and own name (empty until created)
    node: str
    address: str
    on_host: bool  # on its node's network, so that the address is the node's
    ready: bool
    deleting: bool
    unsaid: bool  # its containers are ready, but its node has not reported that its share runs
    suspended: str  # the last message of its node about its share, empty if it is not suspended
    waiting: str  # the scheduler's message about a Pod that is not placed, empty if none
    gates: tuple[str, ...]
    scheduler: str
    made: str  # creation time, ISO 8601
    cpu_request: float | None  # processors of all containers; None if a container requests none
    memory_request_bytes: float | None
    cpu_taken: float  # on its node; no request counts as zero, as it does for the scheduler
    memory_taken_bytes: float
    spec: Object = field(compare=False, repr=False)  # empty once the Pod is placed
    version: str = field(default="", compare=False)  # resourceVersion of its object


@dataclass(frozen=True)
class Workload:
    """A Deployment or StatefulSet."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str
    replicas: int
    selector: Mapping[str, object]
    labels: Mapping[str, str]  # of its Pods
    policy: str
    asks: bool
    qps_url: str
    qps_metric: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Namespace, kind and name."""
        return self.namespace, self.kind, self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Autoscaler:
    """A HorizontalPodAutoscaler and its target."""

    name: str
    target: tuple[str, str, str]


def read_pod(one: Object) -> Pod | None:
    """Reads a Pod; None if it is finished, because it then neither holds nor awaits a share."""
    status, spec, metadata = one.get("status") or {}, one.get("spec") or {}, one["metadata"]
    if status.get("phase") in FINISHED:
        return None
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled") or {}
    running = conditions.get(RUNNING) or {}
    gated = any(g.get("conditionType") == RUNNING for g in spec.get("readinessGates") or [])
    started = (conditions.get("ContainersReady") or {}).get("status") == "True"
    node = spec.get("nodeName") or ""
    made = {
        entry["name"]: entry.get("resourceClaimName") or ""
        for entry in status.get("resourceClaimStatuses") or []
    }
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        policy=(metadata.get("annotations") or {}).get(POLICY, ""),
        asks=of_pod(one),
        claims=tuple(
            (entry["name"], entry.get("resourceClaimName") or made.get(entry["name"], ""))
            for entry in spec.get("resourceClaims") or []
        ),
        node=node,
        address=status.get("podIP") or "",
        on_host=bool(spec.get("hostNetwork")),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        unsaid=gated and started and not running,
        suspended=str(running.get("message") or "suspended")
        if gated and running.get("status") == "False"
        else "",
        waiting="" if node else str(scheduled.get("message") or ""),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or []),
        scheduler=spec.get("schedulerName") or "default-scheduler",
        made=metadata.get("creationTimestamp") or "",
        cpu_request=_requested(spec, "cpu"),
        memory_request_bytes=_requested(spec, "memory"),
        cpu_taken=_requested(spec, "cpu", whole=False) or 0.0,
        memory_taken_bytes=_requested(spec, "memory", whole=False) or 0.0,
        spec={} if node else spec,
        version=metadata.get("resourceVersion", ""),
    )


def read_workload(kind: str, one: Object) -> Workload:
    """Reads a Deployment or StatefulSet."""
    spec, metadata = one["spec"], one["metadata"]
    template = spec.get("template") or {}
    of_pods = template.get("metadata") or {}
    pod_spec = template.get("spec") or {}
    notes = metadata.get("annotations") or {}
    return Workload(
        kind=kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        replicas=spec.get("replicas", 1),
        selector=spec.get("selector") or {},
        labels=of_pods.get("labels") or {},
        policy=(of_pods.get("annotations") or {}).get(POLICY, ""),
        asks=bool(pod_spec.get("resourceClaims")) or asks_for_vgpus(pod_spec),
        qps_url=notes.get(QPS_URL, ""),
        qps_metric=notes.get(QPS_METRIC, ""),
    )


def read_autoscaler(one: Object) -> Autoscaler:
    """Reads a HorizontalPodAutoscaler, whatever its metrics."""
    metadata, target = one["metadata"], one["spec"]["scaleTargetRef"]
    return Autoscaler(metadata["name"], (metadata["namespace"], target["kind"], target["name"]))


def selects(selector: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    """Whether the label selector of a workload selects these labels."""
    wanted = selector.get("matchLabels") or {}
    rules = selector.get("matchExpressions") or []
    if not isinstance(wanted, dict) or not isinstance(rules, list):
        return False
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        meets(rule, labels) for rule in rules
    )


def meets(rule: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    """Whether labels meet one expression of a selector for Pods or nodes."""
    key, operator = str(rule.get("key")), rule.get("operator")
    values = rule.get("values") or []
    if not isinstance(values, list):
        return False
    has = labels.get(key)
    if operator in {"Gt", "Lt"}:
        try:
            mine, bound = int(has or ""), int(values[0])
        except (ValueError, IndexError):
            return False
        return mine > bound if operator == "Gt" else mine < bound
    return {
        "In": has in values,
        "NotIn": has not in values,
        "Exists": has is not None,
        "DoesNotExist": has is None,
    }.get(str(operator), False)


def _requested(spec: Object, resource: str, *, whole: bool = True) -> float | None:
    """The amount of a resource that main containers and sidecars request together.

    With `whole`, the result is None if a container requests none, as a partial sum would mislead.
    """
    sidecars = [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    found = 0.0
    for container in [*(spec.get("containers") or []), *sidecars]:
        said = (container.get("resources") or {}).get("requests") or {}
        try:
            found += float(parse_quantity(said[resource]))
        except (KeyError, QuantityError):
            if whole:
                return None
    return found or None


def ready_first(pods: Iterable[Pod]) -> list[Pod]:
    """The Pods that are not being deleted, in a stable order with ready Pods first."""
    staying = [pod for pod in pods if not pod.deleting]
    return sorted(staying, key=lambda pod: (not pod.ready, pod.made, pod.name))
