"""Uninstall check: an uninstall of the chart is refused while Pods have shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import CLAIMS, PODS
from penstock.kube.objects.names import DRIVER, PLACED
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Api, Object

FINISHED = {"Succeeded", "Failed"}
MOST_NAMED = 10


async def check_unused(api: Api, undo: str) -> None:
    """Checks that no Pod has shares, through claims or extended resources.

    `undo` is the command after which the release can be upgraded again.

    Raises:
        PenstockError: some Pods have shares.
    """
    claims, _ = await api.list(CLAIMS)
    pods, _ = await api.list(PODS)
    users = users_of(claims, pods)
    if not users:
        return
    more = f" and {len(users) - MOST_NAMED} more" if len(users) > MOST_NAMED else ""
    raise PenstockError(
        "Pods have shares of devices",
        ", ".join(users[:MOST_NAMED]) + more,
        "delete these Pods and uninstall again, or keep the release, which helm now considers "
        f"partly removed and does not upgrade until you run: {undo}; after that, upgrade with "
        "--set uninstall.force=true to allow an uninstall while these Pods run on unsupervised",
        reason="not-now",
    )


def users_of(claims: list[Object], pods: list[Object]) -> list[str]:
    """Namespace and name of each Pod with a share, sorted."""
    return sorted({*_by_claim(claims), *_by_placement(pods)})


def _by_claim(claims: list[Object]) -> list[str]:
    """The Pods for which claims with our devices are reserved."""
    found = []
    for claim in claims:
        status = claim.get("status") or {}
        devices = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
        if any(one.get("driver") == DRIVER for one in devices):
            namespace = claim["metadata"]["namespace"]
            found += [f"{namespace}/{one['name']}" for one in status.get("reservedFor") or []]
    return found


def _by_placement(pods: list[Object]) -> list[str]:
    return [
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if (pod["metadata"].get("annotations") or {}).get(PLACED)
        and (pod.get("status") or {}).get("phase") not in FINISHED
    ]
