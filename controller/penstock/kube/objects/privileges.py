"""Privileges: Pods that no quota can restrict; checked at admission and before allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import Kind
from penstock.kube.objects.resource_request import containers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kube.objects.api_client import Object

RUNTIME_CLASSES = Kind("node.k8s.io/v1", "runtimeclasses", namespaced=False)
# These sandboxes share neither memory pages nor futexes with the node: quotas cannot apply.
APART = ("runsc", "gvisor", "kata")

Refusal = tuple[str, str, str]  # what, why, what to do


def privileged(pod: Object) -> Iterator[Refusal]:
    """Yields why the Pod may have no share: its first privileged container."""
    later = (pod.get("spec") or {}).get("ephemeralContainers") or []
    for one in [*(one for one, _, _ in containers(pod)), *later]:
        if (one.get("securityContext") or {}).get("privileged"):
            yield (
                f"container {one.get('name')} is privileged", "it could use all of every device",
                "leave privileged out: a vGPU needs no privilege",
            )  # fmt: skip
            return


def runtime_apart(runtime_class: Object | None) -> Refusal | None:
    """Why no Pod of that RuntimeClass may have a share; None: it may, or the class is missing."""
    found = runtime_class or {}
    handler = str(found.get("handler") or "")
    if not handler.lower().startswith(APART):
        return None
    return (
        f"RuntimeClass {found['metadata']['name']} runs containers by {handler}",
        "they see neither the node's devices nor the page that holds the quota",
        "use a runtime on the node's own kernel, such as runc",
    )
