"""This node's Pods, reduced to what of their vGPUs they say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.kubelet.allocation import OWNER
from penstock.kube.kubelet.claim import CLAIM
from penstock.kube.objects.api_client import PODS, ApiError
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.names import (
    GRACE,
    HELD,
    MODE,
    ON_EXCEED,
    PLACED,
    POLICY,
    RESIZE,
    RUNNING,
)
from penstock.kube.objects.resource_request import roles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.cache import Key
    from penstock_api.v1 import agent_pb2 as pb


ASK_WITHIN_S = 8.0  # kubelets wait for what is asked for meanwhile


@dataclass(frozen=True)
class Condition:
    """Whether what a Pod has of devices runs, as its status says it."""

    status: str  # "True" or "False"
    reason: str
    message: str


@dataclass(frozen=True)
class NodePod:
    """A Pod that the scheduler put here."""

    namespace: str
    name: str
    uid: str
    has_ended: bool  # for good: nothing of it runs or will
    claims: frozenset[str]  # names, in its namespace
    placed: str = ""  # the annotation, as it is
    held: str = ""  # likewise: what its tenants may still have beyond that
    asked: str = ""  # likewise: what its owner wants instead
    mode: str = ""  # likewise
    policy: str = ""
    on_exceed: str = ""
    grace: str = ""
    is_gated: bool = False  # it is ready only while `condition` says that its share runs
    is_running: bool = False  # all its containers have been made, as the kubelet says
    is_deleted: bool = False  # it has been told to end
    condition: Condition | None = None
    order: tuple[str, ...] = ()  # its containers' names, as they start
    inits: frozenset[str] = frozenset()  # those that end before the next one starts
    sidecars: frozenset[str] = frozenset()  # those that start before others and stay
    containers: tuple[tuple[str, str], ...] = ()  # ids of the runtime's, and the names they have
    version: str = field(default="", compare=False)  # of its object


class NodePods:
    """All of them, as the API server has them."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._fields = f"spec.nodeName={node}"
        self.cache: Cache[NodePod] = Cache(api, PODS, read_pod, fields=self._fields)
        self._names: dict[str, Key] = {}  # by uid
        self.cache.changed.append(self._note)

    def named(self, uid: str) -> NodePod | None:
        """The Pod of that uid, as far as it has been seen."""
        key = self._names.get(uid)
        return self.cache.objects.get(key) if key else None

    async def find(self, uid: str) -> NodePod | None:
        """The same, and what the API server has now where it has not been seen: it may be new.

        Raises:
            ApiError: the server was to be asked, and does not answer.
        """
        found = self.named(uid)
        if found is None:
            asked = self._api.list(PODS, fields=self._fields)
            try:
                pods, _ = await asyncio.wait_for(asked, ASK_WITHIN_S)
            except asyncio.TimeoutError as error:
                raise ApiError(
                    "a Pod is not known yet", "the API server does not answer",
                    "it is asked again", 0, "",
                ) from error  # fmt: skip
            found = next((read_pod(one) for one in pods if one["metadata"]["uid"] == uid), None)
        return found

    def _note(self, key: Key, old: NodePod | None, new: NodePod | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._names.pop(old.uid, None)
        if new is not None:
            self._names[new.uid] = key

    def of(self, tenant: pb.Tenant) -> Iterator[NodePod]:
        """Those that the tenant was granted for, by its labels."""
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
    """A Pod as the API server has it."""
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
        mode=annotations.get(MODE, ""),
        policy=annotations.get(POLICY, ""),
        on_exceed=annotations.get(ON_EXCEED, ""),
        grace=annotations.get(GRACE, ""),
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
    """Those that run and those that ended last: events may come after a restart."""
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
