"""Pods that no quota can hold: told when they are made, and again before they get a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import Kind
from penstock.kube.objects.resource_request import containers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kube.objects.api_client import Object

RUNTIME_CLASSES = Kind("node.k8s.io/v1", "runtimeclasses", namespaced=False)
# No shared page and no futex crosses them: a quota would not reach the tenant.
APART = ("runsc", "gvisor", "kata")

Refusal = tuple[str, str, str]  # what, why, what to do


def privileged(pod: Object) -> Iterator[Refusal]:
    """Why the Pod may have no share: the first of its containers that is privileged."""
    later = (pod.get("spec") or {}).get("ephemeralContainers") or []
    for one in [*(one for one, _, _ in containers(pod)), *later]:
        if (one.get("securityContext") or {}).get("privileged"):
            yield (
                f"container {one.get('name')} is privileged", "it could use all of every device",
                "leave privileged out: a vGPU needs no privilege",
            )  # fmt: skip
            return


def runtime_apart(runtime_class: Object | None) -> Refusal | None:
    """Why no Pod of that RuntimeClass may have one; None: it may, or there is no such class."""
    found = runtime_class or {}
    handler = str(found.get("handler") or "")
    if not handler.lower().startswith(APART):
        return None
    return (
        f"RuntimeClass {found['metadata']['name']} runs containers by {handler}",
        "they see neither the node's devices nor the page that holds the quota",
        "use a runtime on the node's own kernel, such as runc",
    )
