"""Asks a cluster for all that explains one Pod."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.api import CLAIMS, EVENTS, NODES, PODS, SLICES, Api, ApiError
from penstock.kube.budgets import all_budgets
from penstock.kube.control.amounts import FINISHED
from penstock.kube.control.caps import CLASSES
from penstock.kube.control.explain import Why, World, explain, open_nodes
from penstock.kube.control.pending import taken_by_node
from penstock.kube.control.workloads import read_pod
from penstock.kube.control.world import devices_of, read_claim, read_node, read_slice
from penstock.kube.device_class import whose
from penstock.kube.place.ledger import ledger_of
from penstock.kube.place.nominated import making_room_on
from penstock.kube.place.outlook import Asker, Surroundings, preemption
from penstock.kube.request import read_request
from penstock.kube.resizing import told
from penstock.model import PenstockError
from penstock.schedule.fit import fits

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.kube.api import Object
    from penstock.kube.control.workloads import Pod

MOST_EVENTS = 5


@dataclass(frozen=True)
class Account:
    """Of one Pod."""

    namespace: str
    pod: str
    phase: str
    node: str
    why: Why
    shares: tuple[str, ...] = ()  # by extended resources, in words


async def account(kubeconfig: Path | None, namespace: str, name: str) -> Account:
    """Why it waits, or what it is at. Raises `PenstockError`."""
    async with await Api.connect(kubeconfig) as api:
        try:
            plain = await api.get(PODS, name, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            raise PenstockError(
                f"there is no Pod {name!r} in namespace {namespace!r}", str(error.why),
                "see kubectl get pods -A; name its namespace with -n",
            ) from error  # fmt: skip
        events, _ = await api.list(
            EVENTS, namespace, fields=f"involvedObject.uid={plain['metadata']['uid']}"
        )
        events.sort(key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
        return await _account(api, plain, events)


async def _account(api: Api, plain: Object, events: list[Object]) -> Account:
    metadata, status = plain["metadata"], plain.get("status") or {}
    phase, node = status.get("phase", "Unknown"), (plain.get("spec") or {}).get("nodeName", "")
    pod = read_pod(plain)
    if pod is None or pod.node or phase in FINISHED:
        why = _placed(status, events)
    else:
        why = await _why_it_waits(api, pod, plain, events)
    shares = tuple(told(metadata.get("annotations") or {}))
    return Account(metadata["namespace"], metadata["name"], phase, node, why, shares)


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
    world = World(
        by_name, ledger.nodes, {}, (), (), taken_by_node(read), request,
        {name: problem for name in by_name if (problem := ledger.problem(name))},
    )  # fmt: skip
    why = explain(pod, world, events)
    spec = plain["spec"]
    asker = Asker(pod.uid, spec.get("priority") or 0, request)
    names = open_nodes(pod, world)
    if pod.gates or any(fits(ledger.nodes[name], request) for name in names):
        return why
    around = Surroundings(budgets, (), api.now_s())
    policy = spec.get("preemptionPolicy") or ""
    outlook = preemption(ledger, names, asker, policy, around)
    node = making_room_on(plain)
    made = f"room is being made for it on {node}" if node else ""
    return Why((*why.causes, made or outlook), why.said)


async def _world(api: Api, waiting: str) -> World:
    claims, slices, nodes, classes = await asyncio.gather(
        api.list(CLAIMS), api.list(SLICES), api.list(NODES), api.list(CLASSES)
    )
    # All Pods of a large cluster are tens of megabytes: only when they matter.
    full = "Insufficient" in waiting or "Too many pods" in waiting
    pods = [read_pod(one) for one in (await api.list(PODS))[0]] if full else []
    read = {(c.namespace, c.name): c for c in map(read_claim, claims[0])}
    offered = [one for one in map(read_slice, slices[0]) if one is not None]
    return World(
        {one.name: one for one in map(read_node, nodes[0])},
        devices_of(offered, read.values()),
        read,
        [one["metadata"]["name"] for one in classes[0]],
        [one["metadata"]["name"] for one in classes[0] if whose(one) == "ours"],
        taken_by_node(pod for pod in pods if pod is not None),
    )


def _placed(status: Object, events: list[Object]) -> Why:
    """What containers wait for, or ended with; warnings of who looks after them."""
    causes = [str(status["message"])] if status.get("message") else []
    every = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    for one in every:
        state = one.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting:
            text = " ".join(str(waiting[k]) for k in ("reason", "message") if waiting.get(k))
            causes.append(f"container {one['name']} waits: {text}")
        elif ended and ended.get("exitCode"):
            text = str(ended.get("message") or ended.get("reason") or "")
            causes.append(f"container {one['name']} ended with {ended['exitCode']}: {text}".strip())
    warnings = {
        f"{event.get('reason')}: {event.get('message')}": None
        for event in events
        if event.get("type") == "Warning"
    }
    return Why(tuple(causes), tuple(warnings)[-MOST_EVENTS:])
