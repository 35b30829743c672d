"""This node's Pods, reduced to which claims they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.api import PODS
from penstock.kube.cache import Cache
from penstock.kube.node.claim import CLAIM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kube.api import Api, Object
    from penstock_api.v1 import agent_pb2 as pb


@dataclass(frozen=True)
class NodePod:
    """A Pod that the scheduler put here."""

    namespace: str
    name: str
    uid: str
    has_ended: bool  # for good: nothing of it runs or will
    claims: frozenset[str]  # names, in its namespace


class NodePods:
    """All of them, as the API server has them."""

    def __init__(self, api: Api, node: str) -> None:
        self.cache: Cache[NodePod] = Cache(api, PODS, read_pod, fields=f"spec.nodeName={node}")

    def of(self, tenant: pb.Tenant) -> Iterator[NodePod]:
        """Those that the tenant was granted for, by its labels."""
        namespace = tenant.labels["namespace"]
        if CLAIM not in tenant.labels:
            found = self.cache.objects.get((namespace, tenant.labels["pod"]))
            if found is not None:
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
    return NodePod(
        metadata.get("namespace", ""),
        metadata["name"],
        metadata["uid"],
        status.get("phase") in {"Succeeded", "Failed"},
        frozenset(claim for claim in claims if claim),
    )
