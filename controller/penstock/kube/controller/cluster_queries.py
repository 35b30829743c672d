"""Cluster queries that explain one Pod: its state, its shares, and why it waits."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.controller.cluster_snapshot import (
    devices_of,
    read_claim,
    read_node,
    read_slice,
    usual_of,
)
from penstock.kube.controller.explain import ClusterSnapshot, Why, explain, open_nodes
from penstock.kube.controller.pending_events import taken_by_node
from penstock.kube.controller.placed_pod import (
    NodeState,
    headline,
    node_state,
    shares_by_claims,
    why_placed,
)
from penstock.kube.extender.ledger import ledger_of
from penstock.kube.extender.nominations import making_room_on
from penstock.kube.extender.preemption_forecast import Asker, ForecastInput, preemption
from penstock.kube.objects.api_client import CLAIMS, EVENTS, NODES, PODS, SLICES, Api, ApiError
from penstock.kube.objects.device_class import whose
from penstock.kube.objects.disruption_budgets import all_budgets
from penstock.kube.objects.resize_annotation import told
from penstock.kube.objects.resource_request import read_request
from penstock.kube.objects.workloads import read_pod
from penstock.kube.quota.caps import CLASSES
from penstock.model import PenstockError
from penstock.scheduling.placement.fit import fits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.kube.controller.cluster_snapshot import Claim, Slice
    from penstock.kube.objects.api_client import Object
    from penstock.kube.objects.workloads import Pod


@dataclass(frozen=True)
class Account:
    """The explanation of one Pod."""

    namespace: str
    pod: str
    phase: str
    state: str  # one line: the phase, the node, and anything unusual
    node: str
    why: Why
    shares: tuple[str, ...] = ()  # the shares that it has, in words


async def account(kubeconfig: Path | None, namespace: str, name: str) -> Account:
    """Explains why a Pod waits, or its current state. Raises `PenstockError`."""
    async with await Api.connect(kubeconfig) as api:
        try:
            plain = await api.get(PODS, name, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            raise PenstockError(
                f"there is no Pod {name!r} in namespace {namespace!r}", str(error.why),
                "find it with kubectl get pods -A, and name its namespace with -n",
            ) from error  # fmt: skip
        events, _ = await api.list(
            EVENTS, namespace, fields=f"involvedObject.uid={plain['metadata']['uid']}"
        )
        events.sort(key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
        return await _account(api, plain, events)


async def _account(api: Api, plain: Object, events: list[Object]) -> Account:
    metadata, status = plain["metadata"], plain.get("status") or {}
    phase, where = status.get("phase", "Unknown"), (plain.get("spec") or {}).get("nodeName", "")
    pod = read_pod(plain)
    node = await _node(api, where) if pod is not None and where else None
    if pod is None or pod.node:
        why = why_placed(plain, node, events)
    else:
        why = await _why_it_waits(api, pod, plain, events)
    shares = tuple(told(metadata.get("annotations") or {}))
    if pod is not None and pod.node and pod.claims:
        shares += await _by_claims(api, pod)
    return Account(
        metadata["namespace"], metadata["name"], phase, headline(plain, node), where, why, shares
    )


async def _node(api: Api, name: str) -> NodeState | None:
    """Reads the Pod's node; None if it is gone, or the user may not read nodes."""
    try:
        return node_state(await api.get(NODES, name))
    except ApiError as error:
        if error.status not in {403, 404}:
            raise
        return None


async def _by_claims(api: Api, pod: Pod) -> tuple[str, ...]:
    """Describes the shares that the Pod's claims hold, as far as the user may read them."""
    claims: dict[str, Claim | None] = {}
    for reference, name in pod.claims:
        with _readable():
            claims[reference] = read_claim(await api.get(CLAIMS, name, pod.namespace))
    slices: list[Slice] = []
    with _readable():
        found, _ = await api.list(SLICES, fields=f"spec.nodeName={pod.node}")
        slices = [one for one in map(read_slice, found) if one is not None]
    return shares_by_claims(claims, slices)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Ignores 403 and 404, so that a user with rights in one namespace still gets the rest."""
    try:
        yield
    except ApiError as error:
        if error.status not in {403, 404}:
            raise


async def _why_it_waits(api: Api, pod: Pod, plain: Object, events: list[Object]) -> Why:
    try:
        request = read_request(plain)
    except PenstockError as error:
        return Why((str(error),), ())
    if request is None:
        return explain(pod, await _world(api, pod.waiting), events)
    nodes, pods, budgets = await asyncio.gather(api.list(NODES), api.list(PODS), all_budgets(api))
    ledger = ledger_of(nodes[0], pods[0])
    read = [found for one in pods[0] if (found := read_pod(one)) is not None]
    by_name = {one.name: one for one in map(read_node, nodes[0])}
    world = ClusterSnapshot(
        by_name, ledger.nodes, {}, (), (), taken_by_node(read), request,
        {name: problem for name in by_name if (problem := ledger.problem(name))},
    )  # fmt: skip
    why = explain(pod, world, events)
    spec = plain["spec"]
    asker = Asker(pod.uid, spec.get("priority") or 0, request)
    names = open_nodes(pod, world)
    # If other reasons than devices exclude every node, evictions would not help.
    if pod.gates or not names or any(fits(ledger.nodes[name], request) for name in names):
        return why
    around = ForecastInput(budgets, (), api.now_s())
    policy = spec.get("preemptionPolicy") or ""
    outlook = preemption(ledger, names, asker, policy, around)
    node = making_room_on(plain)
    made = f"room is being made for it on {node}" if node else ""
    return Why((*why.causes, made or outlook), why.said, why.told)


async def _world(api: Api, waiting: str) -> ClusterSnapshot:
    claims, slices, nodes, classes = await asyncio.gather(
        api.list(CLAIMS), api.list(SLICES), api.list(NODES), api.list(CLASSES)
    )
    # All Pods of a large cluster are tens of megabytes, so they are listed only if they matter.
    full = "Insufficient" in waiting or "Too many pods" in waiting
    pods = [read_pod(one) for one in (await api.list(PODS))[0]] if full else []
    read = {(c.namespace, c.name): c for c in map(read_claim, claims[0])}
    offered = [one for one in map(read_slice, slices[0]) if one is not None]
    return ClusterSnapshot(
        {one.name: one for one in map(read_node, nodes[0])},
        devices_of(offered, read.values()),
        read,
        [one["metadata"]["name"] for one in classes[0]],
        [one["metadata"]["name"] for one in classes[0] if whose(one) == "ours"],
        taken_by_node(pod for pod in pods if pod is not None),
        usual=usual_of(offered),
    )
