"""Privilege checks, which find Pods that no quota can restrict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import Kind
from penstock.kube.objects.resource_request import containers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kube.objects.api_client import Object

RUNTIME_CLASSES = Kind("node.k8s.io/v1", "runtimeclasses", namespaced=False)
# These sandboxes share neither memory pages nor futexes with the node, so quotas cannot apply.
APART = ("runsc", "gvisor", "kata")

Refusal = tuple[str, str, str]  # what, why, what to do


def privileged(pod: Object) -> Iterator[Refusal]:
    """Yields a refusal for the Pod's first privileged container, if it has one."""
    later = (pod.get("spec") or {}).get("ephemeralContainers") or []
    for one in [*(one for one, _, _ in containers(pod)), *later]:
        if (one.get("securityContext") or {}).get("privileged"):
            yield (
                f"container {one.get('name')} is privileged", "it could use all of every device",
                "remove privileged: a vGPU needs no privilege",
            )  # fmt: skip
            return


def runtime_apart(runtime_class: Object | None) -> Refusal | None:
    """The refusal for Pods of a RuntimeClass; None if they may have a share, or it is missing."""
    found = runtime_class or {}
    handler = str(found.get("handler") or "")
    if not handler.lower().startswith(APART):
        return None
    return (
        f"RuntimeClass {found['metadata']['name']} runs containers in the sandbox {handler}",
        "they see neither the node's devices nor the page that holds the quota",
        "use a runtime on the node's own kernel, such as runc",
    )
