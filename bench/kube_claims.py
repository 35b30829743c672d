"""Pods a second that a stock scheduler places by claims for shares (DRA, consumable capacity).

    python bench/kube_claims.py [--nodes 500] [--devices 8] [--pods 1000]

Starts the tests' real cluster if none is up. Nodes are objects without a kubelet, with the slices
that `penstock kube node` writes; Pods ask as in `kube_place.py`, each by a claim made before. What
is granted is summed from the claims at the end. Nothing of ours runs: the stock scheduler counts.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.kube_pods import NAMESPACE, Watched, clear, each, make_namespace, on_a_cluster, rate
from tests.kube.support.placing import GIB, node, pod

from penstock.kube.controller.cluster_snapshot import read_claim
from penstock.kube.kubelet.resource_slices import slices_of
from penstock.kube.objects.api_client import CLAIMS, NODES, PODS, SLICES, Api, ApiError, Object
from penstock.kube.objects.node_devices import NodeDevice
from penstock.kube.quota.caps import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.kube.cluster import running
    from tests.kube.support.placing import Placing

MEMORY_BYTES = 80 * GIB
CLASS = "bench.penstock.io"
SETTLED_S = 30.0  # nothing bound for so long


def claim(name: str, memory_gib: int, cores_permille: int) -> Object:
    asked = {"memory": f"{memory_gib}Gi", "coresPermille": str(cores_permille)}
    request = {"deviceClassName": CLASS, "capacity": {"requests": asked}}
    devices = {"requests": [{"name": "gpu", "exactly": request}]}
    return {"metadata": {"name": name}, "spec": {"devices": devices}}


def claiming(name: str) -> Object:
    """A Pod with the claim of its own name."""
    body = pod(name)
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return body


def over(claims: Iterable[Object]) -> int:
    """Devices given beyond what they have, by nothing but the claims."""
    memory: Counter[tuple[str, str]] = Counter()
    cores: Counter[tuple[str, str]] = Counter()
    for one in map(read_claim, claims):
        for held in one.held or ():
            memory[held.pool, held.device] += held.share.memory_bytes
            cores[held.pool, held.device] += held.share.cores_permille
    return sum(memory[one] > MEMORY_BYTES or cores[one] > 1000 for one in memory)


async def measure(
    options: argparse.Namespace, cluster: running.Cluster, placing: Placing
) -> dict[str, object]:
    chance = random.Random(options.seed)  # noqa: S311 - sizes, no secrets
    async with await Api.connect(cluster.layout.kubeconfig) as api:
        await make_namespace(api, cluster)
        selector = {"cel": {"expression": 'device.driver == "penstock.io"'}}
        await api.create(CLASSES, {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}})

        async def make_node(at: int) -> None:
            name = f"bench-{at:04}"
            made = await api.create(NODES, node(name))
            devices = [
                NodeDevice(f"GPU-{name}-{at}", at, "NVIDIA H200", MEMORY_BYTES)
                for at in range(options.devices)
            ]
            for one in slices_of(name, made["metadata"]["uid"], devices, 1):
                await api.create(SLICES, one)

        async def make_pod(at: int) -> None:
            name = f"p{at:05}"
            memory, cores = chance.randint(5, 40), chance.randint(100, 600)
            await api.create(CLAIMS, claim(name, memory, cores), NAMESPACE)
            await api.create(PODS, claiming(name), NAMESPACE)

        await each(make_node, range(options.nodes))
        await each(make_pod, range(options.pods))
        watched = Watched()
        watching = asyncio.create_task(watched.run(api))
        await asyncio.to_thread(placing.start)
        used = placing.process("kube-scheduler")
        last, last_s = 0, time.monotonic()
        while last < options.pods and time.monotonic() - last_s < SETTLED_S:
            await asyncio.sleep(0.25)
            if len(watched.bound_s) != last:
                last, last_s = len(watched.bound_s), time.monotonic()
        watching.cancel()
        claims, _ = await api.list(CLAIMS, NAMESPACE)
        await api.delete(CLASSES, CLASS)
    return {
        "nodes": options.nodes, "devices": options.nodes * options.devices,
        "pods": options.pods, "bound": last, "devices_given_twice": over(claims),
        "bound_a_second": rate(watched.bound_s),
        "scheduler_processor_seconds": round(sum(used.cpu_times()[:2]), 1),
    }  # fmt: skip


async def remove(cluster: running.Cluster, nodes: int) -> None:
    """Takes all of it away from a cluster that was there before."""
    async with await Api.connect(cluster.layout.kubeconfig) as api:
        try:
            await api.delete(CLASSES, CLASS)
        except ApiError as error:
            if error.status != 404:
                raise
    await clear(cluster, nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=6)
    options = parser.parse_args()
    on_a_cluster(
        lambda cluster, placing: measure(options, cluster, placing),
        lambda cluster: remove(cluster, options.nodes),
        extended=False,
    )


if __name__ == "__main__":
    main()
