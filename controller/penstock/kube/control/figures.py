"""What Pods use, from those who measure it: kubelets, our agents, and pages that count requests.

Each source asks by itself, every few seconds, for what is `wanted` of it, and keeps what it heard
last with the time on this machine's monotonic clock: nobody waits for a page that hangs, and what
cannot be read grows old, which `decide` takes for "not known". No clock of another machine counts.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from penstock.kube.api import ApiError
from penstock.scale.decide import Sample
from penstock.scale.rate import Rate
from penstock.scale.requests import MAX_PAGE_BYTES, read_metric

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from penstock.kube.api import Api, Object
    from penstock.kube.control.workloads import Pod

KUBELET_S = 5.0  # kubelets themselves measure every ten seconds or so
AGENT_S = 5.0
PAGE_S = 2.0
AT_ONCE = 16
PAGE_TIMEOUT_S = 4.0
SUMMARY = "stats/summary?only_cpu_and_memory=true"
_TENANT = re.compile(
    r"^penstock_tenant_(?:memory_quota_bytes|memory_used_bytes|cores_quota_ratio"
    r"|device_seconds_total)\{.*$",
    re.MULTILINE,
)
_Thing = TypeVar("_Thing")
Who = tuple[str, str]  # namespace, name of the Pod or of the claim that several Pods share


@dataclass(frozen=True)
class _Heard:
    stamp: str  # of whoever measured: only whether it changed matters
    at_ns: int  # monotonic, here, when it was heard first
    value: float


class Kubelets:
    """Processor and memory in use of each Pod, by the API server's way to every kubelet."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.wanted: set[str] = set()
        """Nodes."""
        self.problems: dict[str, str] = {}
        self._heard: dict[tuple[str, str], _Heard] = {}  # by uid and measure

    async def run(self) -> None:
        """Asks until it is cancelled."""
        await _every(KUBELET_S, self._round)

    def processors(self, pod: Pod) -> Sample | None:
        """How many it used over the kubelet's last few seconds."""
        return self._sample(pod, "cpu", 1e-9)

    def memory_bytes(self, pod: Pod) -> Sample | None:
        """Its working set: what is not given back under pressure."""
        return self._sample(pod, "memory", 1.0)

    def _sample(self, pod: Pod, measure: str, unit: float) -> Sample | None:
        heard = self._heard.get((pod.uid, measure))
        return Sample(heard.at_ns, heard.value * unit) if heard else None

    async def _round(self) -> None:
        nodes = set(self.wanted)
        answers = await _each(nodes, self._ask)
        self.problems = {node: why for node, why in answers if why}
        oldest_ns = time.monotonic_ns() - 120 * 10**9
        self._heard = {key: one for key, one in self._heard.items() if one.at_ns > oldest_ns}

    async def _ask(self, node: str) -> str:
        try:
            self.take(await self._api.ask_kubelet(node, SUMMARY))
        except ApiError as error:
            return str(error)
        return ""

    def take(self, summary: Object) -> None:
        """A kubelet's answer."""
        at_ns = time.monotonic_ns()
        for one in summary.get("pods") or []:
            uid = (one.get("podRef") or {}).get("uid", "")
            for measure, figure in (("cpu", "usageNanoCores"), ("memory", "workingSetBytes")):
                said = one.get(measure) or {}
                value, stamp = said.get(figure), str(said.get("time"))
                before = self._heard.get((uid, measure))
                if isinstance(value, (int, float)) and (before is None or before.stamp != stamp):
                    self._heard[uid, measure] = _Heard(stamp, at_ns, float(value))


@dataclass
class _Share:
    """A tenant's part of one device, as its agent's page tells."""

    at_ns: int
    figures: dict[str, float] = field(default_factory=dict)
    spent: Rate | None = None


class Agents:
    """Use of vGPUs relative to their quotas, from the page that each agent has for Prometheus."""

    def __init__(self, session: aiohttp.ClientSession, window_ns: int) -> None:
        self._session = session
        self._window_ns = window_ns
        self.pages: dict[str, str] = {}
        """URL of each node's agent; whoever knows the agents' Pods fills it in."""
        self.wanted: set[str] = set()
        """Nodes."""
        self.problems: dict[str, str] = {}
        self._shares: dict[Who, dict[tuple[str, str], _Share]] = {}  # by tenant and device

    async def run(self) -> None:
        """Asks until it is cancelled."""
        await _every(AGENT_S, self._round)

    def cores_percent(self, names: Iterable[Who]) -> Sample | None:
        """Device time of its quota, on the device where that is most."""
        return self._most(names, self._cores)

    def memory_percent(self, names: Iterable[Who]) -> Sample | None:
        """Device memory of its quota, on the device where that is most."""
        return self._most(names, self._memory)

    async def _round(self) -> None:
        nodes = set(self.wanted)
        answers = await _each(nodes, self._ask)
        self.problems = {node: why for node, why in answers if why}
        oldest_ns = time.monotonic_ns() - 120 * 10**9
        for who, shares in list(self._shares.items()):
            kept = {key: one for key, one in shares.items() if one.at_ns > oldest_ns}
            self._shares[who] = kept
            if not kept:
                del self._shares[who]

    async def _ask(self, node: str) -> str:
        url = self.pages.get(node)
        if url is None:
            return f"no agent of Penstock is known on node {node}"
        try:
            self.take(await fetch(self._session, url))
        except PageError as error:
            return str(error)
        return ""

    def take(self, page: str) -> None:
        """An agent's page."""
        at_ns = time.monotonic_ns()
        lines = "\n".join(_TENANT.findall(page)) + "\n"
        for family in text_string_to_metric_families(lines):
            for sample in family.samples:
                labels = sample.labels
                who = (labels.get("namespace", ""), labels.get("pod", ""))
                key = (labels.get("tenant", ""), labels.get("device_uuid", ""))
                share = self._shares.setdefault(who, {}).setdefault(key, _Share(at_ns))
                share.at_ns = at_ns
                share.figures[sample.name] = sample.value
                if sample.name == "penstock_tenant_device_seconds_total":
                    if share.spent is None:
                        share.spent = Rate(self._window_ns)
                    share.spent.add(at_ns, sample.value)

    def _most(
        self, names: Iterable[Who], figure: Callable[[_Share], float | None]
    ) -> Sample | None:
        found = [
            (share.at_ns, value)
            for who in names
            for share in self._shares.get(who, {}).values()
            if (value := figure(share)) is not None
        ]
        if not found:
            return None
        return Sample(min(at_ns for at_ns, _ in found), max(value for _, value in found))

    @staticmethod
    def _cores(share: _Share) -> float | None:
        quota = share.figures.get("penstock_tenant_cores_quota_ratio")
        used = share.spent.per_second if share.spent else None
        return None if not quota or used is None else used / quota * 100

    @staticmethod
    def _memory(share: _Share) -> float | None:
        quota = share.figures.get("penstock_tenant_memory_quota_bytes")
        used = share.figures.get("penstock_tenant_memory_used_bytes")
        return None if not quota or used is None else used / quota * 100


@dataclass
class _Page:
    metric: str
    rate: Rate
    last: Sample | None = None


class Pages:
    """Requests a second, from pages in Prometheus' text format. A counter becomes a rate."""

    def __init__(self, session: aiohttp.ClientSession, window_ns: int) -> None:
        self._session = session
        self._window_ns = window_ns
        self.wanted: set[tuple[str, str]] = set()
        """URL and name of the metric."""
        self.problems: dict[str, str] = {}
        self._pages: dict[tuple[str, str], _Page] = {}

    async def run(self) -> None:
        """Asks until it is cancelled."""
        await _every(PAGE_S, self._round)

    def per_second(self, url: str, metric: str) -> Sample | None:
        """The newest figure."""
        page = self._pages.get((url, metric))
        return page.last if page else None

    async def _round(self) -> None:
        wanted = set(self.wanted)
        for gone in self._pages.keys() - wanted:
            del self._pages[gone]
        answers = await _each(wanted, self._ask)
        self.problems = {url: why for (url, _), why in answers if why}

    async def _ask(self, key: tuple[str, str]) -> str:
        url, metric = key
        page = self._pages.setdefault(key, _Page(metric, Rate(self._window_ns)))
        try:
            found = read_metric(await fetch(self._session, url), metric)
        except PageError as error:
            return str(error)
        if found is None:
            return f"{url}: no metric {metric}"
        at_ns = time.monotonic_ns()
        if not found[1]:
            page.last = Sample(at_ns, found[0])
            return ""
        page.rate.add(at_ns, found[0])
        rate = page.rate.per_second
        page.last = None if rate is None else Sample(at_ns, rate)
        return ""


class PageError(Exception):
    """A page could not be read; the message says which, and why."""


async def fetch(session: aiohttp.ClientSession, url: str) -> str:
    """The page at an http(s) URL; redirects lead nowhere. Raises `PageError`."""
    try:
        async with session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise PageError(f"{url}: HTTP status {answer.status}")
            parts, size = [], 0
            async for part in answer.content.iter_chunked(1 << 16):
                parts.append(part)
                size += len(part)
                if size > MAX_PAGE_BYTES:
                    raise PageError(f"{url}: more than {MAX_PAGE_BYTES} bytes")
            return b"".join(parts).decode(errors="replace")
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        raise PageError(f"{url}: {str(error) or type(error).__name__}") from error


async def _every(period_s: float, act: Callable[[], Awaitable[None]]) -> None:
    while True:
        began_s = time.monotonic()
        await act()
        await asyncio.sleep(max(0.1, began_s + period_s - time.monotonic()))


async def _each(
    things: Iterable[_Thing], ask: Callable[[_Thing], Awaitable[str]]
) -> list[tuple[_Thing, str]]:
    """The answers of all, some at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(thing: _Thing) -> tuple[_Thing, str]:
        async with gate:
            return thing, await ask(thing)

    return await asyncio.gather(*map(one, things))
