"""Cluster cleanup: removes the slices, leases and node marks that the chart does not own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import LEASES, NODES, SLICES, ApiError, Kind
from penstock.kube.objects.names import DRIVER, GROUP
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from penstock.kube.objects.api_client import Api, Object

DAEMON_SETS = Kind("apps/v1", "daemonsets")
LOOK_AGAIN_S = 1.0
FORGET_LOOK_S = 5.0
QUIET_S = 35.0  # three times the interval at which kubelets write their status


async def await_cleaners(api: Api, namespace: str, name: str, within_s: float) -> None:
    """Waits until the DaemonSet's Pod on every node is ready.

    Raises:
        PenstockError: some Pods are not ready after `within_s`.
    """
    until_s = time.monotonic() + within_s
    while True:
        one = await api.get(DAEMON_SETS, name, namespace)
        status = one.get("status") or {}
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        seen = status.get("observedGeneration") == one["metadata"]["generation"]
        if seen and ready >= wanted:
            return
        if time.monotonic() > until_s:
            raise PenstockError(
                f"{wanted - ready} of {wanted} nodes are not clean",
                f"the Pods of {namespace}/{name} there are still not ready after {within_s:g} s",
                "find these Pods with kubectl get pods -o wide, check their logs and whether the "
                "nodes still exist, and uninstall again",
                reason="not-now",
            )  # fmt: skip
        await asyncio.sleep(LOOK_AGAIN_S)


async def clean_cluster(api: Api, namespace: str, leases: Sequence[str]) -> AsyncIterator[str]:
    """Removes slices, node marks and `leases`, and yields each by name. Raises `ApiError`."""
    for one in (await api.list(SLICES, fields=f"spec.driver={DRIVER}"))[0]:
        await api.delete(SLICES, one["metadata"]["name"])
        yield f"resourceslice {one['metadata']['name']}"
    for one in (await api.list(NODES))[0]:
        async for told in _clean_node(api, one):
            yield told
    for lease in leases:
        await api.delete(LEASES, lease, namespace)
        yield f"lease {lease}"


async def forget_capacities(api: Api, within_s: float) -> AsyncIterator[str]:
    """Removes our extended resources from Nodes until kubelets no longer write them.

    For five minutes after a device plugin is gone, the kubelet keeps the name of its resource and
    writes it into the Node's status every ten seconds. Finally it writes the resource once more
    as 0.

    Yields a line for what was removed. If `within_s` is 0, removes the resources once and does not
    check again.

    Raises:
        PenstockError: a kubelet still writes one of the resources after `within_s`.
    """
    began_s = last_s = time.monotonic()
    while True:
        found = [one for one in (await api.list(NODES))[0] if capacities(one)]
        for one in found:
            with _though_gone():
                await api.patch(
                    NODES, one["metadata"]["name"], capacities(one), subresource="status"
                )
        names = ", ".join(one["metadata"]["name"] for one in found)
        now_s = time.monotonic()
        if found:
            if last_s == began_s:
                yield f"capacities of {names}"
            last_s = now_s
        if not within_s or now_s - last_s >= (QUIET_S if last_s > began_s else 0):
            return
        if now_s - began_s > within_s:
            raise PenstockError(
                "kubelets still report vGPUs",
                f"the last report, by {names or 'one of them'}, is {now_s - last_s:.0f} s old",
                "wait five minutes after the last device plugin has ended, then uninstall again",
                reason="not-now",
            )  # fmt: skip
        await asyncio.sleep(FORGET_LOOK_S)


async def _clean_node(api: Api, node: Object) -> AsyncIterator[str]:
    name = node["metadata"]["name"]
    if body := marks(node):
        with _though_gone():
            await api.patch(NODES, name, body)
            yield f"marks of node {name}"


@contextlib.contextmanager
def _though_gone() -> Iterator[None]:
    """Ignores a node that was deleted in the meantime, as its marks are gone with it."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


def marks(node: Object) -> Object:
    """The merge patch that removes our annotations, labels and taints; empty if there are none."""
    metadata = node["metadata"]
    ours = {
        kind: {key: None for key in metadata.get(kind) or {} if _is_ours(key)}
        for kind in ("annotations", "labels")
    }
    patch: Object = {}
    if changed := {kind: keys for kind, keys in ours.items() if keys}:
        patch["metadata"] = changed
    taints = (node.get("spec") or {}).get("taints") or []
    kept = [one for one in taints if not _is_ours(one["key"])]
    if len(kept) < len(taints):
        # With the version, the patch cannot overwrite concurrent changes of taints.
        patch["spec"] = {"taints": kept}
        patch.setdefault("metadata", {})["resourceVersion"] = metadata["resourceVersion"]
    return patch


def capacities(node: Object) -> Object:
    """The merge patch that removes our extended resources, which kubelets leave behind as 0."""
    status = node.get("status") or {}
    ours = {
        kind: {key: None for key in status.get(kind) or {} if _is_ours(key)}
        for kind in ("capacity", "allocatable")
    }
    changed = {kind: keys for kind, keys in ours.items() if keys}
    return {"status": changed} if changed else {}


def _is_ours(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    return bool(slash) and (domain == GROUP or domain.endswith(f".{GROUP}"))
