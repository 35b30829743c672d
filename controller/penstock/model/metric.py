"""Scaling metrics: what replicas can be scaled by, with the metrics' names and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Metric = Literal["cpu", "memory", "cores", "vgpu_memory", "qps"]


@dataclass(frozen=True)
class MetricNames:
    """The names of a scaling metric."""

    key: str  # in a QuotaPolicy and in its status
    shown: str  # in output for users
    unit: str = " %"


METRICS: dict[Metric, MetricNames] = {  # in the policy's order
    "cpu": MetricNames("cpu", "cpu"),
    "memory": MetricNames("memory", "memory"),
    "cores": MetricNames("cores", "vGPU cores"),
    "vgpu_memory": MetricNames("vgpuMemory", "vGPU memory"),
    "qps": MetricNames("qps", "qps", unit=""),
}
