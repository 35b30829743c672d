"""Pods a second that a scheduler with the extender places, and the extender's own latency.

    python bench/kube_place.py [--nodes 500] [--devices 8] [--pods 12000] [--kills 5]

Starts the tests' real cluster if none is up. Nodes are objects without a kubelet; Pods ask 10 to
60 % and 5 to 40 Gi, more than fits. At the end what is granted is summed from the API's objects.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.kube_pods import NAMESPACE, Watched, clear, each, make_namespace, on_a_cluster, rate
from tests.kube.support.placing import GIB, devices, node, pod

from penstock.kube.objects.api_client import NODES, PODS, Api, Object
from penstock.kube.objects.names import PLACED
from penstock.kube.objects.placement import read_placement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kube.cluster import running
    from tests.kube.support.placing import Placing

MEMORY_BYTES = 80 * GIB
SETTLED_S = 20.0  # nothing bound for so long: twice the scheduler's longest wait


def check(found: list[Object], memory: int) -> tuple[int, int]:
    """Pods bound, and devices given beyond what they have: by nothing but the objects."""
    held: dict[str, list[int]] = {}
    bound = 0
    for one in found:
        text = (one["metadata"].get("annotations") or {}).get(PLACED)
        where = one["spec"].get("nodeName")
        if bool(text) != bool(where):
            raise SystemExit(f"{one['metadata']['name']}: on {where}, placed {text}")
        if not text:
            continue
        bound += 1
        for uuid, share in read_placement(text)["main"].items():
            if not uuid.startswith(f"GPU-{where}-"):
                raise SystemExit(f"{one['metadata']['name']} is on {where} and has {uuid}")
            figures = held.setdefault(uuid, [0, 0])
            figures[0] += share.memory_bytes
            figures[1] += share.cores_permille
    return bound, sum(mem > memory or cores > 1000 for mem, cores in held.values())


def quantile(buckets: list[tuple[float, float]], part: float) -> float:
    """The upper bound of the bucket that it lies in, seconds."""
    total = buckets[-1][1]
    return next(le for le, count in buckets if count >= part * total)


def decisions(text: str) -> dict[str, object]:
    """What one life of the extender measured of itself."""
    result: dict[str, object] = {}
    for verb in ("filter", "prioritize"):
        buckets, figures = [], {}
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if f'verb="{verb}"' not in key:
                continue
            if "le=" in key:
                buckets.append((float(key.split('le="')[1].split('"')[0]), float(value)))
            else:
                figures[key.split("{")[0].rpartition("_")[2]] = float(value)
        if figures.get("count"):
            result[verb] = {
                "count": int(figures["count"]),
                "mean_ms": round(1e3 * figures["sum"] / figures["count"], 3),
                "p99_ms_at_most": 1e3 * quantile(buckets, 0.99),
            }
    for line in text.splitlines():
        if line.startswith("penstock_place_bindings_total"):
            result[line.split('"')[1]] = int(float(line.split()[1]))
    return result


def processor_seconds(cluster: running.Cluster, placing: Placing) -> dict[str, float]:
    """What each part has used so far: the machine's cores are what they share."""
    parts = {name: cluster.process(name) for name in ("kube-apiserver", "etcd")}
    parts["kube-scheduler"] = placing.process("kube-scheduler")
    parts["bench"] = psutil.Process()
    return {name: sum(one.cpu_times()[:2]) for name, one in parts.items()}


async def measure(
    options: argparse.Namespace, cluster: running.Cluster, placing: Placing
) -> dict[str, object]:
    """Makes all nodes and Pods, then starts the scheduler on them."""
    chance = random.Random(options.seed)  # noqa: S311 - sizes, no secrets
    async with await Api.connect(cluster.layout.kubeconfig) as api:
        await make_namespace(api, cluster)

        async def make_node(at: int) -> None:
            name = f"bench-{at:04}"
            await api.create(NODES, node(name, devices(name, options.devices, MEMORY_BYTES)))

        async def make_pod(at: int) -> None:
            memory, cores = chance.randint(5, 40), chance.randint(100, 600)
            body = pod(f"p{at:05}", memory=f"{memory}Gi", cores=cores)
            await api.create(PODS, body, NAMESPACE)

        await each(make_node, range(options.nodes))
        began_s = time.monotonic()
        await each(make_pod, range(options.pods))
        created_s = time.monotonic() - began_s
        watched = Watched()
        watching = asyncio.create_task(watched.run(api))
        await asyncio.to_thread(placing.start)
        before = processor_seconds(cluster, placing)
        lives = [life async for life in placed(options, placing, watched)]
        after = processor_seconds(cluster, placing)
        watching.cancel()
        found, _ = await api.list(PODS, NAMESPACE)
    bound, over = check(found, MEMORY_BYTES)
    return {
        "nodes": options.nodes, "devices": options.nodes * options.devices,
        "pods": options.pods, "bound": bound, "devices_given_twice": over,
        "kills": len(lives) - 1, "created_a_second": round(options.pods / created_s, 1),
        "bound_a_second": rate(watched.bound_s),
        "extender_lives": lives,
        "processor_seconds": {
            name: round(after[name] - before[name], 1) for name in after
        },
    }  # fmt: skip


async def placed(
    options: argparse.Namespace, placing: Placing, watched: Watched
) -> AsyncIterator[dict[str, object]]:
    """Until no more is bound; what each life of the extender measured."""
    kills, last, last_s = 0, 0, time.monotonic()

    async def told() -> dict[str, object]:
        used = sum(placing.process().cpu_times()[:2])
        said = await asyncio.to_thread(placing.ask, "metrics")
        return {**decisions((said or b"").decode()), "processor_seconds": round(used, 1)}

    while last < options.pods and time.monotonic() - last_s < SETTLED_S:
        await asyncio.sleep(0.25)
        if len(watched.bound_s) != last:
            last, last_s = len(watched.bound_s), time.monotonic()
        if kills < options.kills and last >= (kills + 1) * options.every:
            yield await told()
            await asyncio.to_thread(placing.kill)
            await asyncio.to_thread(placing.start_extender)
            kills += 1
    yield await told()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--pods", type=int, default=12000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--every", type=int, default=1500, help="Pods bound between two kills")
    parser.add_argument("--seed", type=int, default=6)
    options = parser.parse_args()
    on_a_cluster(
        lambda cluster, placing: measure(options, cluster, placing),
        lambda cluster: clear(cluster, options.nodes),
    )


if __name__ == "__main__":
    main()
