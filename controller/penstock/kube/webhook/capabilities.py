"""Capabilities and host paths that a Pod with a share may not have, as they could lift its quota.

Enforcement would detect that the Pod exceeds its quota, but the webhook prevents it.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from penstock.kube.objects.resource_request import containers

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object
    from penstock.kube.webhook.verdict import Verdict

# With SYS_ADMIN, a container can unmount the files that hide the driver; with SYS_MODULE, it can
# load a kernel module.
LOOSENING = {"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "BPF"}
# Directories of the node for tenant state and for the container runtime, as in the chart.
KEPT = tuple(
    map(
        PurePosixPath,
        (
            "/run/penstock", "/var/run/penstock", "/var/lib/penstock", "/var/run/cdi", "/run/cdi",
            "/etc/cdi", "/run/containerd", "/var/run/containerd", "/proc",
        ),
    )
)  # fmt: skip


def review_powers(pod: Object, verdict: Verdict) -> None:
    """Refuses capabilities and host directories that could lift the quota; warns about hostPID."""
    for one, _, _ in containers(pod):
        added = ((one.get("securityContext") or {}).get("capabilities") or {}).get("add") or []
        for name in sorted({str(name).upper().removeprefix("CAP_") for name in added} & LOOSENING):
            verdict.refuse(
                f"container {one.get('name')} has the capability {name}",
                "with it a program can remove its quota",
                "leave it out: a vGPU needs no capability",
            )
    spec = pod.get("spec") or {}
    for volume in spec.get("volumes") or []:
        path = str((volume.get("hostPath") or {}).get("path") or "")
        if path and (kept := _reached(path)):
            verdict.refuse(
                f"volume {volume.get('name')} mounts the node's {path}",
                f"it gives access to {kept}, which controls quotas",
                "mount a directory of your own",
            )
    if spec.get("hostPID"):
        verdict.warnings.append(
            "hostPID: the Pod's processes see those of all tenants and of the agent, and can end "
            "them as root; leave it out unless you trust the image with the node"
        )


def _reached(path: str) -> PurePosixPath | None:
    """The first protected directory that contains `path` or is inside it."""
    place = PurePosixPath("/", *(part for part in path.split("/") if part not in {"", "."}))
    if ".." in place.parts:  # the API server refuses such a path as well
        return place
    return next(
        (one for one in KEPT if one.is_relative_to(place) or place.is_relative_to(one)), None
    )
