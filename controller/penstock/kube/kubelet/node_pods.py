"""Node Pods: the Pods of this node, reduced to the fields that concern their vGPUs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.kubelet.allocation import OWNER
from penstock.kube.kubelet.claim import CLAIM
from penstock.kube.objects.api_client import PODS, ApiError
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.names import HELD, PLACED, RESIZE, RUNNING
from penstock.kube.objects.resource_request import roles
from penstock.kube.objects.terms_annotations import TERMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.cache import Key
    from penstock_api.v1 import agent_pb2 as pb


ASK_WITHIN_S = 8.0  # time limit of a request for which a kubelet waits


@dataclass(frozen=True)
class Condition:
    """The condition in a Pod's status that reports whether its shares run."""

    status: str  # "True" or "False"
    reason: str
    message: str


@dataclass(frozen=True)
class NodePod:
    """A Pod that is bound to this node."""

    namespace: str
    name: str
    uid: str
    has_ended: bool  # none of its containers runs or will run again
    claims: frozenset[str]  # names of its claims
    placed: str = ""  # the placement annotation, unparsed
    held: str = ""  # the held annotation: larger shares that its tenants may still have
    asked: str = ""  # the resize annotation: the sizes that its owner requests
    terms: Mapping[str, str] = field(default_factory=dict, hash=False)  # its terms annotations
    is_gated: bool = False  # it is ready only while `condition` says that its share runs
    is_running: bool = False  # the kubelet reports that all its containers were created
    is_deleted: bool = False  # it is being deleted
    condition: Condition | None = None
    order: tuple[str, ...] = ()  # names of its containers in start order
    inits: frozenset[str] = frozenset()  # containers that end before the next one starts
    sidecars: frozenset[str] = frozenset()  # init containers that keep running
    containers: tuple[tuple[str, str], ...] = ()  # their ids in the runtime, and their names
    version: str = field(default="", compare=False)  # resourceVersion of its object


class NodePods:
    """The cache of this node's Pods."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._fields = f"spec.nodeName={node}"
        self.cache: Cache[NodePod] = Cache(api, PODS, read_pod, fields=self._fields)
        self._names: dict[str, Key] = {}  # by uid
        self.cache.changed.append(self._note)

    def named(self, uid: str) -> NodePod | None:
        """The Pod with this uid in the cache, or None."""
        key = self._names.get(uid)
        return self.cache.objects.get(key) if key else None

    async def find(self, uid: str) -> NodePod | None:
        """The Pod with this uid from the cache, or, if it may be new, from the API server.

        Raises:
            ApiError: the Pod is not in the cache, and the server does not respond.
        """
        found = self.named(uid)
        if found is None:
            asked = self._api.list(PODS, fields=self._fields)
            try:
                pods, _ = await asyncio.wait_for(asked, ASK_WITHIN_S)
            except asyncio.TimeoutError as error:
                raise ApiError(
                    "a Pod is not known yet", "the API server does not respond",
                    "check the API server; the request is retried", 0, "",
                ) from error  # fmt: skip
            found = next((read_pod(one) for one in pods if one["metadata"]["uid"] == uid), None)
        return found

    def _note(self, key: Key, old: NodePod | None, new: NodePod | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._names.pop(old.uid, None)
        if new is not None:
            self._names[new.uid] = key

    def of(self, tenant: pb.Tenant) -> Iterator[NodePod]:
        """The Pods for which a tenant was granted, according to its labels."""
        namespace = tenant.labels["namespace"]
        if CLAIM not in tenant.labels:
            found = self.cache.objects.get((namespace, tenant.labels["pod"]))
            if found is not None and found.uid == tenant.labels[OWNER].partition("/")[0]:
                yield found
            return
        for pod in self.cache.objects.values():
            if pod.namespace == namespace and tenant.labels[CLAIM] in pod.claims:
                yield pod


def read_pod(one: Object) -> NodePod:
    """Reads a Pod object."""
    metadata, spec, status = one["metadata"], one.get("spec") or {}, one.get("status") or {}
    claims = {claim.get("resourceClaimName") for claim in spec.get("resourceClaims") or []}
    claims |= {
        claim.get("resourceClaimName") for claim in status.get("resourceClaimStatuses") or []
    }
    claims.add((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    annotations = metadata.get("annotations") or {}
    known = roles(one)
    return NodePod(
        metadata.get("namespace", ""),
        metadata["name"],
        metadata["uid"],
        status.get("phase") in {"Succeeded", "Failed"},
        frozenset(claim for claim in claims if claim),
        placed=annotations.get(PLACED, ""),
        held=annotations.get(HELD, ""),
        asked=annotations.get(RESIZE, ""),
        terms={name: annotations[name] for name in TERMS if name in annotations},
        is_gated=any(
            gate.get("conditionType") == RUNNING for gate in spec.get("readinessGates") or []
        ),
        is_running=status.get("phase") == "Running",
        is_deleted="deletionTimestamp" in metadata,
        condition=_condition(status),
        order=tuple(name for name, _ in known),
        inits=frozenset(name for name, role in known if role == "init"),
        sidecars=frozenset(name for name, role in known if role == "sidecar"),
        containers=tuple(_containers(status)),
        version=metadata.get("resourceVersion", ""),
    )


def _containers(status: Object) -> Iterator[tuple[str, str]]:
    """Ids and names of current and previous containers, because events may follow a restart."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(kind) or []:
            ended = ((one.get("lastState") or {}).get("terminated") or {}).get("containerID")
            for told in (one.get("containerID"), ended):
                if told:
                    yield str(told).rpartition("/")[2], str(one.get("name"))


def _condition(status: Object) -> Condition | None:
    for one in status.get("conditions") or []:
        if one.get("type") == RUNNING:
            return Condition(
                str(one.get("status")), one.get("reason") or "", one.get("message") or ""
            )
    return None
