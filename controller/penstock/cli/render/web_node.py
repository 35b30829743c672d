"""Map of one node for the web page: its devices, and each tenant's quota and use."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError, format_cores, human_memory
from penstock.web import applications_data, bar_data, card_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.cli.render.feed import DeviceLine, Feed, Picture, TenantLine
    from penstock.web import Query

SAMPLED_EVERY_S = 10.0
MOST_SAMPLES = 360  # an hour
MOST_ROWS = 200
WHOLE = 1000  # per mille of a device's time
MIB = 1 << 20


class WebNode:
    """Returns the map for a query. The history begins with the first call."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._samples: deque[list[int]] = deque(maxlen=MOST_SAMPLES)
        self._sampled_s = 0.0
        self._alone = threading.Lock()

    def __call__(self, query: Query) -> dict[str, Any]:
        """The map. Raises `PenstockError` while the node cannot be read."""
        with self._alone:
            picture = self._feed.picture()
            if picture.problem:
                raise PenstockError("the agent does not answer", picture.problem)
            now = _figures(picture)
            if not self._samples or time.monotonic() - self._sampled_s >= SAMPLED_EVERY_S:
                self._sampled_s = time.monotonic()
                self._samples.append([time.time_ns() // 10**6, *now])
            return node_map(picture, [*self._samples, [None, *now]], query)


def _figures(picture: Picture) -> list[int]:
    """Percent of a device's time: used, granted, and the quotas of the suspended."""
    granted = sum(one.cores_granted_permille for one in picture.devices)
    used = sum(one.cores_used_permille for one in picture.devices)
    suspended = sum(line.row.cores_quota_permille or 0 for line in picture.tenants
                    if _phase(line) == "suspended")  # fmt: skip
    return [used // 10, granted // 10, suspended // 10]


def node_map(
    picture: Picture, samples: Sequence[Sequence[int | None]], query: Query
) -> dict[str, Any]:
    """The map of a node; the query chooses devices by model, and those of a tenant."""
    name, _, words = picture.title.partition(": ")
    lines = picture.tenants
    names = list(dict.fromkeys(line.row.tenant for line in lines))
    at = {tenant: index for index, tenant in enumerate(names)}
    phases = {line.row.tenant: _phase(line) for line in lines}
    devices = [one for one in picture.devices if _matches(one, lines, query.find)]
    cards = [_card(one, [line for line in lines if line.row.device_index == one.index], at)
             for one in devices]  # fmt: skip
    granted = sum(one.cores_granted_permille for one in picture.devices)
    return {
        "title": name,
        "subtitle": words,
        "note": "upper strip: device time in thousandths; lower strip: memory in MiB; "
        "dark line: in use · the same letter and colour: the same tenant · hatched: suspended",
        "finds": "tenant or model",
        "totals": _totals(picture, phases, granted),
        "find": query.find, "page": 0, "pages": 1, "found": 1 if cards else 0,
        "nodes": [{
            "name": name, "state": "there", "note": "\n".join(picture.notes),
            "figures": f"{len(cards)} of {len(picture.devices)} devices",
            "zones": [{"kind": "gpu", "cards": cards}],
        }] if cards else [],
        "names": names, "phases": [phases[one] for one in names],
        "lists": _lists(lines, phases),
        "history": {
            "unit": "% of a device's time", "most": max(100, 100 * len(picture.devices)),
            "series": ["used", "granted", "suspended"], "samples": samples,
        },
    }  # fmt: skip


def _phase(line: TenantLine) -> str:
    return "suspended" if line.suspended or line.row.suspension else "running"


def _matches(device: DeviceLine, lines: Iterable[TenantLine], find: str) -> bool:
    return find in device.name.lower() or any(
        find in line.row.tenant.lower() for line in lines if line.row.device_index == device.index
    )


def _card(device: DeviceLine, lines: Sequence[TenantLine], at: dict[str, int]) -> dict[str, object]:
    rows = [line.row for line in lines if line.row.suspension != "released"]
    time_quotas = [(at[row.tenant], row.cores_quota_permille or 0, row.cores_used_permille)
                   for row in rows]  # fmt: skip
    memory_quotas = [(at[row.tenant], (row.memory_quota_bytes or 0) // MIB,
                      row.memory_used_bytes // MIB if row.memory_used_bytes is not None else None)
                     for row in rows]  # fmt: skip
    granted = format_cores(device.cores_granted_permille)
    simulated = ", simulated" if device.simulated else ""
    return card_data(
        f"{device.index}: {device.name}{simulated}",
        f"{granted} % granted, {human_memory(device.memory_used_bytes)} used",
        [_bar("time", WHOLE, time_quotas), _bar("memory", device.memory_bytes // MIB,
                                                memory_quotas)],
    )  # fmt: skip


def _bar(label: str, size: int, quotas: Iterable[tuple[int, int, int | None]]) -> dict[str, object]:
    """The quotas beside each other; a device without its own size is as large as they are."""
    held: list[tuple[int, int, int, float | None]] = []
    first = 1
    for holder, quota, used in quotas:
        if quota <= 0:
            continue
        share = None if used is None else round(used / quota, 3)
        held.append((first, first + quota - 1, holder, share))
        first += quota
    return bar_data(label, 1, max(size, first - 1, 1), held)


def _totals(picture: Picture, phases: dict[str, str], granted: int) -> list[dict[str, object]]:
    devices = len(picture.devices)
    used = sum(one.cores_used_permille for one in picture.devices)
    memory = sum(one.memory_granted_bytes for one in picture.devices)
    whole = sum(one.memory_bytes for one in picture.devices)
    suspended = sum(phase == "suspended" for phase in phases.values())
    return [
        {"label": "% of device time granted", "value": round(granted / 10, 1), "of": 100 * devices,
         "more": f"{format_cores(used)} % used"},
        {"label": "GiB of memory granted", "value": round(memory / (1 << 30), 1),
         "of": round(whole / (1 << 30), 1), "more": "device memory"},
        {"label": "devices", "value": devices, "more": "on this node"},
        {"label": "running", "value": len(phases) - suspended, "more": "tenants"},
        {"label": "suspended", "value": suspended, "more": "tenants"},
    ]  # fmt: skip


def _lists(lines: Sequence[TenantLine], phases: dict[str, str]) -> list[dict[str, object]]:
    def rows(phase: str) -> list[dict[str, object]]:
        return [_row(line, phase) for line in lines if phases[line.row.tenant] == phase]

    suspended, running = rows("suspended"), rows("running")
    return [
        applications_data("Suspended", "suspended", len(suspended), suspended[:MOST_ROWS],
                          "Nobody is suspended."),
        applications_data("Tenants", "", len(running), running[:MOST_ROWS],
                          "No tenant has a share."),
    ]  # fmt: skip


def _row(line: TenantLine, phase: str) -> dict[str, object]:
    row = line.row
    facts = [
        ["device", "?" if row.device_index is None else str(row.device_index)],
        ["time", _of(row.cores_used_permille, row.cores_quota_permille, format_cores, " %")],
        ["memory", _of(row.memory_used_bytes, row.memory_quota_bytes, human_memory)],
        ["of", row.user],
        ["mode", row.mode],
    ]
    if row.host_memory_bytes:
        facts.append(["memory on the host", human_memory(row.host_memory_bytes)])
    return {"name": row.tenant, "phase": phase, "why": row.problem or "", "facts": facts,
            "since": None}  # fmt: skip


def _of(used: int | None, quota: int | None, text: Any, unit: str = "") -> str:  # noqa: ANN401
    before, after = ("?" if one is None else text(one) for one in (used, quota))
    return f"{before} of {after}{unit}"
