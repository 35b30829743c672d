"""Sampling of each replica's use relative to its request, which is the input of `decide`.

Processor time and memory are read from /proc, vGPU cores and memory from the tenant's pages, and
requests from a page in Prometheus' text format. Rates are means over a window. A value that cannot
be read is left out, without an error.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.autoscaling.process_tree import (
    children_of_all,
    descendants,
    memory_bytes_of,
    times_of,
)
from penstock.autoscaling.replicas import Phase
from penstock.model import PenstockError
from penstock.node.tenants.tenant import Tenant
from penstock.scheduling.replicas.decide import ReplicaSample, Sample
from penstock.scheduling.replicas.rates import Rate
from penstock_shim.pages import PageError, read_quota, read_usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.autoscaling.replicas import Replica
    from penstock.autoscaling.request_rate import Requests
    from penstock.model.metric import Metric
    from penstock.node.tenants.state import State

LEAST_WINDOW_NS, LONGEST_WINDOW_NS = 10**9, 15 * 10**9


def window_ns_of(stabilization_ns: int) -> int:
    """The averaging window for rates, derived from the policy's stabilization time."""
    return max(LEAST_WINDOW_NS, min(LONGEST_WINDOW_NS, stabilization_ns // 4))


@dataclass
class Processor:
    """Processor time used by a changing tree of processes, without double counting."""

    rate: Rate
    total_ns: int = 0
    seen: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def add(self, at_ns: int, pids: Iterable[int]) -> None:
        """Adds a sample of the current processes."""
        first = not self.rate.totals
        now: dict[tuple[int, int], tuple[int, int]] = {}
        for pid in pids:
            if times := times_of(pid):
                now[pid, times.start_ticks] = times.own_ns, times.reaped_ns
        # A child's use moves to its parent when the parent waits for it, so the sum of both grows
        # evenly. The sum falls when a process ends whose parent is not in the tree.
        own = sum(times[0] - self.seen.get(process, (0, 0))[0] for process, times in now.items())
        both = sum(map(sum, now.values())) - sum(map(sum, self.seen.values()))
        if not first:  # earlier use extends over an unknown time, so it is left out
            self.total_ns += max(0, own, both)
        self.seen = now
        self.rate.add(at_ns, self.total_ns)


@dataclass
class _Meters:
    """Cumulative values of one replica."""

    processor: Processor
    spent: dict[str, Rate] = field(default_factory=dict)  # by device


class Sampler:
    """Samples the replicas of one set; rates need several calls, some time apart."""

    def __init__(
        self,
        state: State,
        metrics: Iterable[Metric],
        window_ns: int,
        *,
        cpu_request: float,
        memory_request_bytes: int | None,
        requests: Requests | None = None,
    ) -> None:
        """The requests are for one replica; `cpu_request` is in processors.

        Raises:
            PenstockError: one of `metrics` needs a request or a source that is missing.
        """
        self._state = state
        self._metrics = set(metrics)
        self._window_ns = window_ns
        self._cpu_request = cpu_request
        self._memory_request_bytes = memory_request_bytes
        self._requests = requests
        self._meters: dict[tuple[int, int], _Meters] = {}
        for metric, given, option in (
            ("memory", memory_request_bytes is not None, "--memory-request 2Gi (of one replica)"),
            ("qps", requests is not None, "--qps-url URL and --qps-metric NAME"),
        ):
            if metric in self._metrics and not given:
                raise PenstockError(
                    f"the policy scales by {metric}, which cannot be measured",
                    "there is nothing to measure it by",
                    f"add {option}, or take {metric} out of the policy's scale",
                )

    def replicas(self, replicas: Iterable[Replica], ready_after_ns: int = 0) -> list[ReplicaSample]:
        """One sample for each replica. A replica is ready when it has run for `ready_after_ns`."""
        samples = []
        living = set()
        # A process that was started with an empty environment is found as a descendant.
        children = children_of_all() if self._metrics & {"cpu", "memory"} else {}
        for replica in replicas:
            at_ns = time.monotonic_ns()
            since_ns = replica.running_since_ns
            if replica.phase is not Phase.running or since_ns is None:
                samples.append(ReplicaSample(ready=False))
                continue
            living.add((replica.number, since_ns))
            figures = {
                metric: Sample(at_ns, value)
                for metric, value in self._figures(replica, at_ns, children).items()
                if value is not None and metric in self._metrics
            }
            if self._requests and "qps" in self._metrics and self._requests.each:
                qps = self._requests.of_replica(replica.number)
                if qps is not None:
                    figures["qps"] = qps
            samples.append(ReplicaSample(at_ns - since_ns >= ready_after_ns, figures))
        for key in self._meters.keys() - living:
            del self._meters[key]
        return samples

    def totals(self) -> dict[Metric, Sample]:
        """Demand as measured outside the replicas."""
        if self._requests is None or self._requests.each or "qps" not in self._metrics:
            return {}
        total = self._requests.total()
        return {} if total is None else {"qps": total}

    def _figures(
        self, replica: Replica, at_ns: int, children: Mapping[int, Sequence[int]]
    ) -> dict[Metric, float | None]:
        meters = self._meters.setdefault(
            (replica.number, replica.running_since_ns or 0),
            _Meters(Processor(Rate(self._window_ns))),
        )
        figures: dict[Metric, float | None] = {}
        members = {*replica.members, *descendants(replica.members, children)}
        if "cpu" in self._metrics and members:
            meters.processor.add(at_ns, members)
            used = meters.processor.rate.per_second
            figures["cpu"] = None if used is None else used / 1e9 / self._cpu_request * 100
        if "memory" in self._metrics and self._memory_request_bytes:
            sizes = [size for pid in members if (size := memory_bytes_of(pid)) is not None]
            figures["memory"] = sum(sizes) / self._memory_request_bytes * 100 if sizes else None
        if self._metrics & {"cores", "vgpu_memory"}:
            figures |= self._of_devices(replica, meters)
        return figures

    def _of_devices(self, replica: Replica, meters: _Meters) -> dict[Metric, float | None]:
        """Use relative to the quota, on the device where it is highest and so runs short first."""
        tenant = Tenant(self._state.tenants / replica.tenant)
        try:
            limits = read_quota(tenant.quota_page).limits
            usage = read_usage(tenant.usage_page)
        except (PageError, OSError):
            return {}
        at_ns = time.monotonic_ns()
        cores, memory = [], []
        for limit, used in zip(limits.devices, usage.devices, strict=False):
            rate = meters.spent.setdefault(limit.uuid, Rate(self._window_ns))
            rate.add(at_ns, used.spent_ns)
            if rate.per_second is not None:
                cores.append(rate.per_second / 1e9 / limit.cores_permille * 1000 * 100)
            memory.append(used.total_bytes / limit.memory_bytes * 100)
        return {
            "cores": max(cores, default=None),
            "vgpu_memory": max(memory, default=None),
        }
