"""Many Pods on a real control plane: made, watched until they are bound, and taken away again."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tests.kube.cluster import layout, running
from tests.kube.support.placing import Placing
from tests.kube.support.waiting import until

from penstock.kube.objects.api_client import NODES, PODS, Api, Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

T = TypeVar("T")
NAMESPACE = "bench-place"
NAMESPACES = Kind("v1", "namespaces", namespaced=False)
HANDS = 32


async def each(work: Callable[[T], Awaitable[object]], things: Iterable[T]) -> None:
    limit = asyncio.Semaphore(HANDS)

    async def one(thing: T) -> None:
        async with limit:
            await work(thing)

    await asyncio.gather(*(one(thing) for thing in things))


async def make_namespace(api: Api, cluster: running.Cluster) -> None:
    """Returns when Pods may be made there."""
    await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    until(
        "its account",
        lambda: cluster.core.read_namespaced_service_account("default", NAMESPACE),
    )


class Watched:
    """When each Pod was made and when it was bound, by the API server's own watch."""

    def __init__(self) -> None:
        self.bound_s: list[float] = []
        self._seen: set[str] = set()

    async def run(self, api: Api) -> None:
        _, version = await api.list(PODS, NAMESPACE)
        while True:
            async for event, one in api.watch(PODS, version, NAMESPACE):
                version = one["metadata"]["resourceVersion"]
                name = one["metadata"].get("name", "")
                if event != "BOOKMARK" and one["spec"].get("nodeName") and name not in self._seen:
                    self._seen.add(name)
                    self.bound_s.append(time.monotonic())


def rate(bound_s: list[float]) -> float:
    """Pods a second, over the first three quarters of them: the last wait for room."""
    steady = bound_s[: max(2, len(bound_s) * 3 // 4)]
    return round((len(steady) - 1) / (steady[-1] - steady[0]), 1) if len(steady) > 1 else 0.0


async def clear(cluster: running.Cluster, nodes: int) -> None:
    """Takes all of it away from a cluster that was there before."""
    async with await Api.connect(cluster.layout.kubeconfig) as api:
        found, _ = await api.list(PODS, NAMESPACE)
        await each(lambda one: api.delete(PODS, one["metadata"]["name"], NAMESPACE), found)
        await each(lambda at: api.delete(NODES, f"bench-{at:04}"), range(nodes))
        await api.delete(NAMESPACES, NAMESPACE)
        while NAMESPACE in {one["metadata"]["name"] for one in (await api.list(NAMESPACES))[0]}:
            await asyncio.sleep(0.5)


def on_a_cluster(
    measure: Callable[[running.Cluster, Placing], Coroutine[object, object, dict[str, object]]],
    remove: Callable[[running.Cluster], Coroutine[object, object, None]],
    *,
    extended: bool = True,
) -> None:
    """Prints what `measure` finds on the tests' cluster, started for it unless it is up."""
    before = layout.stored(layout.STATE)
    was_up = bool(before and running.services(before))
    cluster = running.up()
    with tempfile.TemporaryDirectory() as folder:
        placing = Placing(cluster, Path(folder), extended=extended)
        try:
            if was_up:  # a run that was killed left its own
                asyncio.run(remove(cluster))
            print(json.dumps(asyncio.run(measure(cluster, placing)), indent=1))
        finally:
            placing.stop()
            if was_up:
                asyncio.run(remove(cluster))
            else:
                cluster.close()
                running.down()
