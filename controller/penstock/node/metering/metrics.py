"""Table of all metrics: name, unit, labels, description, and how to get the value.

The exporter, `docs/metrics.md` and the tests of dashboard and alerts are all based on this table.
Names use base units (`_bytes`, `_seconds`, `_ratio` from 0 to 1), and counters end in `_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from penstock.node.metering.metered_amounts import NS

if TYPE_CHECKING:
    from penstock.node.metering.metrics_snapshot import (
        DeviceSnapshot,
        NodeSnapshot,
        ShareSnapshot,
        TenantSnapshot,
    )

NODE = ("node",)
DEVICE = ("node", "device_uuid")
TENANT = ("node", "namespace", "pod", "container", "tenant")
SHARE = ("node", "device_uuid", "namespace", "pod", "container", "tenant")

Of = TypeVar("Of")
# A number; None if unknown, which gives no sample; or a mapping by the values of the extra labels.
Value = float | None | Mapping[str, float] | Mapping[tuple[str, ...], float]


@dataclass(frozen=True)
class Metric(Generic[Of]):
    """One metric family."""

    name: str
    kind: Literal["gauge", "counter"]
    unit: str
    help: str
    value: Callable[[Of], Value]
    more_labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Histogram:
    """The only metric family whose samples the exporter itself counts."""

    name: str
    unit: str
    help: str
    bounds_s: tuple[float, ...]


LOOP = Histogram(
    "penstock_agent_loop_seconds",
    "seconds",
    "Duration of the iterations of the agent's loop, without the pauses between them.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)


def one(*labels: str) -> dict[tuple[str, ...], float]:
    """The value of a metric that only has labels."""
    return {labels: 1.0}


def _ratio(permille: int | None) -> float | None:
    return None if permille is None else permille / 1000


def _seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / NS


AGENT: tuple[Metric[tuple[NodeSnapshot, int]], ...] = (
    Metric(
        "penstock_agent_info", "gauge", "", "Always 1; the label is the agent's release.",
        lambda of: one(of[0].version), ("version",),
    ),
    Metric(
        "penstock_agent_start_time_seconds", "gauge", "seconds",
        "When the agent started, in seconds since 1970 (UTC).", lambda of: of[0].began_wall_ns / NS,
    ),
    Metric(
        "penstock_agent_heartbeat_age_seconds", "gauge", "seconds",
        "Time since the agent's loop last ended an iteration, reported by another thread.",
        lambda of: max(0, of[1] - of[0].at_mono_ns) / NS,
    ),
    Metric(
        "penstock_agent_tenants", "gauge", "", "Tenants that have a grant on the node.",
        lambda of: len(of[0].tenants),
    ),
    Metric(
        "penstock_agent_damaged_tenants", "gauge", "",
        "Tenants whose grant or pages cannot be read.", lambda of: of[0].damaged_tenants,
    ),
    Metric(
        "penstock_meter_behind_seconds", "gauge", "seconds",
        "Age of the oldest reading that is not yet stored on disk.",
        lambda of: of[0].meter.behind_s + max(0, of[1] - of[0].at_mono_ns) / NS,
    ),
    Metric(
        "penstock_meter_pending_rows", "gauge", "",
        "Metered rows that are not yet stored on disk.", lambda of: of[0].meter.pending_rows,
    ),
    Metric(
        "penstock_meter_failures_total", "counter", "",
        "Failed attempts to store readings, which are kept and retried.",
        lambda of: of[0].meter.failures,
    ),
    Metric(
        "penstock_meter_damaged_stores_total", "counter", "",
        "Meter databases that were found damaged and set aside.",
        lambda of: len(of[0].meter.damaged),
    ),
)  # fmt: skip

DEVICES: tuple[Metric[DeviceSnapshot], ...] = (
    Metric(
        "penstock_device_info", "gauge", "", "Always 1; the labels describe the device.",
        lambda of: one(of.name, str(of.simulated).lower()), ("model", "simulated"),
    ),
    Metric(
        "penstock_device_available", "gauge", "",
        "1 while the device responds, 0 while it is lost.", lambda of: float(of.available),
    ),
    Metric(
        "penstock_device_healthy", "gauge", "",
        "0 while the device is lost or needs a reset, and no more of it is granted.",
        lambda of: None if of.healthy is None else float(of.healthy),
    ),
    Metric(
        "penstock_device_xid_errors_total", "counter", "",
        "XID errors reported by the driver since the agent started, including those of programs.",
        lambda of: of.xids, ("xid",),
    ),
    Metric(
        "penstock_device_foreign_processes", "gauge", "",
        "Processes that use the device but belong to no tenant, so that no quota applies.",
        lambda of: of.foreign_processes,
    ),
    Metric(
        "penstock_device_memory_capacity_bytes", "gauge", "bytes", "Memory of the device.",
        lambda of: of.memory_capacity_bytes,
    ),
    Metric(
        "penstock_device_memory_used_bytes", "gauge", "bytes",
        "Memory in use by any process, as reported by the device.",
        lambda of: of.memory_used_bytes,
    ),
    Metric(
        "penstock_device_memory_granted_bytes", "gauge", "bytes",
        "Sum of the memory quotas on the device.", lambda of: of.memory_granted_bytes,
    ),
    Metric(
        "penstock_device_utilisation_ratio", "gauge", "ratio",
        "Share of recent time that the device was busy, as reported by the device.",
        lambda of: _ratio(of.busy_permille),
    ),
    Metric(
        "penstock_device_cores_granted_ratio", "gauge", "ratio",
        "Sum of the device time quotas.", lambda of: _ratio(of.cores_granted_permille),
    ),
)  # fmt: skip

TENANTS: tuple[Metric[TenantSnapshot], ...] = (
    Metric(
        "penstock_tenant_info", "gauge", "", "Always 1; the labels are user, policy and mode.",
        lambda of: one(of.identity.user, of.identity.policy, of.mode),
        ("user", "policy", "mode"),
    ),
    Metric(
        "penstock_tenant_processes", "gauge", "", "Processes that use a device under the quota.",
        lambda of: of.processes,
    ),
    Metric(
        "penstock_tenant_suspended", "gauge", "", "1 while the tenant's launches are held back.",
        lambda of: float(of.suspended),
    ),
    Metric(
        "penstock_tenant_events_total", "counter", "",
        "Events since the agent started, by kind: deny, throttle, suspend, terminate and others.",
        lambda of: of.events, ("kind",),
    ),
    Metric(
        "penstock_tenant_findings", "gauge", "",
        "Open findings by kind: use that bypasses the shim, use beyond the quota.",
        lambda of: of.findings, ("kind",),
    ),
)  # fmt: skip

SHARES: tuple[Metric[ShareSnapshot], ...] = (
    Metric(
        "penstock_tenant_memory_quota_bytes", "gauge", "bytes", "Memory granted.",
        lambda of: of.memory_quota_bytes,
    ),
    Metric(
        "penstock_tenant_memory_used_bytes", "gauge", "bytes", "Memory charged now.",
        lambda of: of.memory_used_bytes,
    ),
    Metric(
        "penstock_tenant_memory_peak_bytes", "gauge", "bytes", "Highest memory ever charged.",
        lambda of: of.memory_peak_bytes,
    ),
    Metric(
        "penstock_tenant_memory_measured_bytes", "gauge", "bytes",
        "Memory in use by the tenant, as measured by the device.",
        lambda of: of.memory_measured_bytes,
    ),
    Metric(
        "penstock_tenant_cores_quota_ratio", "gauge", "ratio", "Share of device time granted.",
        lambda of: _ratio(of.cores_quota_permille),
    ),
    Metric(
        "penstock_tenant_cores_allowance_ratio", "gauge", "ratio",
        "Share allowed now, above the quota while an elastic tenant uses idle device time.",
        lambda of: _ratio(of.allowance_permille),
    ),
    Metric(
        "penstock_tenant_device_seconds_total", "counter", "seconds",
        "Device time charged. Its rate is the share of the device that is used.",
        lambda of: _seconds(of.used.charged_ns),
    ),
    Metric(
        "penstock_tenant_measured_device_seconds_total", "counter", "seconds",
        "Device time as measured by the device, if it measures it.",
        lambda of: _seconds(of.used.measured_ns),
    ),
    Metric(
        "penstock_tenant_memory_byte_seconds_total", "counter", "byte seconds",
        "Memory charged over time.", lambda of: of.used.byte_seconds,
    ),
    Metric(
        "penstock_tenant_estimated_seconds_total", "counter", "seconds",
        "Gaps between readings, for which memory is assumed to be the mean of both ends.",
        lambda of: _seconds(of.used.estimated_ns),
    ),
    Metric(
        "penstock_tenant_suspicious_readings_total", "counter", "",
        "Values of the usage page that cannot be true, and are not charged.",
        lambda of: of.used.suspicions,
    ),
    Metric(
        "penstock_tenant_launches_total", "counter", "", "Launches that have ended.",
        lambda of: of.launches,
    ),
    Metric(
        "penstock_tenant_waits_total", "counter", "",
        "Launches that had to wait for the tenant's share.", lambda of: of.waits,
    ),
    Metric(
        "penstock_tenant_wait_seconds_total", "counter", "seconds",
        "Time that launches spent waiting, summed over all threads.",
        lambda of: _seconds(of.waited_ns),
    ),
    Metric(
        "penstock_tenant_debts_total", "counter", "",
        "Launches admitted ahead of the tenant's share, to keep the program running.",
        lambda of: of.debts,
    ),
    Metric(
        "penstock_tenant_memory_refusals_total", "counter", "",
        "Memory requests refused as \"out of memory\" because of the quota.",
        lambda of: of.refusals,
    ),
    Metric(
        "penstock_tenant_copies_total", "counter", "", "Copies by copy engines.",
        lambda of: of.copies,
    ),
    Metric(
        "penstock_tenant_copied_bytes_total", "counter", "bytes",
        "Bytes moved by copy engines, which are counted but not limited.",
        lambda of: of.copied_bytes,
    ),
    Metric(
        "penstock_tenant_host_functions_total", "counter", "",
        "Host functions queued on streams, which are not limited.", lambda of: of.host_functions,
    ),
)  # fmt: skip

# The age of a page's heartbeat, which the agent's iterations renew.
PAGES: tuple[Metric[tuple[TenantSnapshot, int]], ...] = (
    Metric(
        "penstock_tenant_heartbeat_age_seconds", "gauge", "seconds",
        "Time since the last heartbeat in the tenant's quota page.",
        lambda of: None if of[0].heartbeat_ns is None
        else max(0, of[1] - of[0].heartbeat_ns) / NS,
    ),
)  # fmt: skip

GROUPS: tuple[tuple[str, tuple[str, ...], tuple[Metric[Any], ...]], ...] = (
    ("The agent", NODE, AGENT),
    ("Devices", DEVICE, DEVICES),
    ("Tenants", TENANT, (*TENANTS, *PAGES)),
    ("Tenants, by device", SHARE, SHARES),
)
