"""Pod metrics: the usage of Pods, from the metrics API or kubelets, and from our agents.

Each source polls on its own every few seconds, and keeps the last values with the time on this
machine's monotonic clock. So a source that hangs delays no other. Values that cannot be read again
grow old, and `decide` treats old values as unknown. Clocks of other machines do not matter.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from penstock.autoscaling.request_rate import MAX_PAGE_BYTES
from penstock.kube.controller.polling import Polling
from penstock.kube.controller.request_metrics import PageError, fetch
from penstock.kube.objects.api_client import ApiError, Kind
from penstock.kube.objects.quantity import parse_quantity
from penstock.model import QuantityError
from penstock.scheduling.replicas.decide import Sample
from penstock.scheduling.replicas.rates import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import aiohttp

    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.workloads import Pod

# The source of the Pods' processor and memory usage: the metrics API, the kubelets through the API
# server (which requires the right to `nodes/proxy`), or none.
PodUse = Literal["metrics", "kubelets", "off"]
POD_METRICS = Kind("metrics.k8s.io/v1beta1", "pods")
METRICS_S = 5.0  # servers of the metrics API measure every fifteen seconds
KUBELET_S = 5.0  # kubelets themselves measure every ten seconds or so
AGENT_S = 5.0
AT_ONCE = 64
# A page of 64 shares takes a millisecond of processor time, so this rate takes a fifth of a
# processor. It reads the pages of 5,000 nodes within the 30 s for which a sample is valid.
PAGES_PER_SECOND = 200.0
KUBELETS_PER_SECOND = 100.0  # each request loads the API server, too
FORGOTTEN_NS = 120 * 10**9
SUMMARY = "stats/summary?only_cpu_and_memory=true"
_METRICS = ("memory_quota_bytes", "memory_used_bytes", "cores_quota_ratio", "device_seconds_total")
_LABEL = re.compile(r'(namespace|pod|tenant|device_uuid)="((?:[^"\\\n]|\\.)*)"')
_Key = TypeVar("_Key")
Who = tuple[str, str]  # namespace, name of the Pod or of the claim that several Pods share


@dataclass(frozen=True)
class _Heard:
    stamp: str  # the source's timestamp, used only to see whether the value is new
    at_ns: int  # monotonic time at which the value first arrived
    value: float


class Source(Protocol):
    """A source of the Pods' processor and memory usage."""

    def want(self, pods: Iterable[Pod]) -> None:
        """Polls only for these Pods from now on."""

    def processors(self, pod: Pod) -> Sample | None:
        """The processors that the Pod used on average over the last seconds."""

    def memory_bytes(self, pod: Pod) -> Sample | None:
        """The Pod's working set, which is memory that cannot be reclaimed under pressure."""

    def problem(self, pod: Pod) -> str:
        """Why there is no sample of the Pod, or no recent one."""

    async def run(self) -> None:
        """Polls until cancelled."""


def source_of(use: PodUse, api: Api) -> Source:
    """The source that the cluster's administrator chose."""
    if use == "off":
        return Nobody()
    return Kubelets(api) if use == "kubelets" else PodMetrics(api)


class Nobody:
    """The source that measures nothing, when scaling by cpu and memory is switched off."""

    def want(self, pods: Iterable[Pod]) -> None:
        """Does nothing."""

    def processors(self, pod: Pod) -> None:
        """Always unknown."""

    def memory_bytes(self, pod: Pod) -> None:
        """Always unknown."""

    def problem(self, pod: Pod) -> str:  # noqa: ARG002
        """Why usage is unknown."""
        return "cpu and memory are not measured in this cluster (control.podUse is off)"

    async def run(self) -> None:
        """Returns at once."""


class PodMetrics:
    """Usage from the metrics API, which Kubernetes' autoscalers use too, listed by namespace."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._heard: dict[tuple[str, str, str], _Heard] = {}  # by namespace, name, measure
        self._polling: Polling[str] = Polling(
            self._ask, METRICS_S, at_once=8, per_second=KUBELETS_PER_SECOND
        )

    def want(self, pods: Iterable[Pod]) -> None:
        """Polls the namespaces of these Pods from now on."""
        self._polling.wanted = {pod.namespace for pod in pods}
        self._heard = _fresh(self._heard)

    def processors(self, pod: Pod) -> Sample | None:
        """The processors that the Pod used on average over the last 15 s or so."""
        return _sample(self._heard.get((pod.namespace, pod.name, "cpu")))

    def memory_bytes(self, pod: Pod) -> Sample | None:
        """The Pod's working set."""
        return _sample(self._heard.get((pod.namespace, pod.name, "memory")))

    def problem(self, pod: Pod) -> str:
        """The API server's last error for the Pod's namespace."""
        return self._polling.problems.get(pod.namespace, "")

    async def run(self) -> None:
        """Polls until cancelled."""
        await self._polling.run()

    async def _ask(self, namespace: str) -> str:
        try:
            # The server of this API keeps metrics in memory, and not in a store.
            found, _ = await self._api.list(POD_METRICS, namespace, fresh=False)
        except ApiError as error:
            if error.status in {404, 503}:
                return (
                    "cpu and memory of Pods are unknown: no server for metrics.k8s.io; install "
                    "metrics-server, or set the chart's control.podUse"
                )
            return str(error)
        self.take(found)
        return ""

    def take(self, found: Iterable[Object]) -> None:
        """Records the items of a response."""
        at_ns = time.monotonic_ns()
        for one in found:
            where, stamp = one["metadata"], str(one.get("timestamp"))
            for measure in ("cpu", "memory"):
                try:
                    value = sum(
                        float(parse_quantity(part["usage"][measure])) for part in one["containers"]
                    )
                except (KeyError, QuantityError):
                    continue
                key = where["namespace"], where["name"], measure
                _hear(self._heard, key, _Heard(stamp, at_ns, value))


class Kubelets:
    """Usage from kubelets, through the API server's proxy to each node with such a Pod."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._heard: dict[tuple[str, str], _Heard] = {}  # by uid and measure
        self._polling: Polling[str] = Polling(
            self._ask, KUBELET_S, at_once=AT_ONCE, per_second=KUBELETS_PER_SECOND
        )

    def want(self, pods: Iterable[Pod]) -> None:
        """Polls the kubelets of these Pods' nodes from now on."""
        self._polling.wanted = {pod.node for pod in pods if pod.node}
        self._heard = _fresh(self._heard)

    def processors(self, pod: Pod) -> Sample | None:
        """The processors that the Pod used on average over the last few seconds."""
        return _sample(self._heard.get((pod.uid, "cpu")))

    def memory_bytes(self, pod: Pod) -> Sample | None:
        """The Pod's working set."""
        return _sample(self._heard.get((pod.uid, "memory")))

    def problem(self, pod: Pod) -> str:
        """The last error of the Pod's kubelet."""
        return self._polling.problems.get(pod.node, "")

    async def run(self) -> None:
        """Polls until cancelled."""
        await self._polling.run()

    async def _ask(self, node: str) -> str:
        try:
            self.take(await self._api.ask_kubelet(node, SUMMARY))
        except ApiError as error:
            return str(error)
        return ""

    def take(self, summary: Object) -> None:
        """Records a kubelet's response."""
        at_ns = time.monotonic_ns()
        for one in summary.get("pods") or []:
            uid = (one.get("podRef") or {}).get("uid", "")
            for measure, figure, unit in (
                ("cpu", "usageNanoCores", 1e-9), ("memory", "workingSetBytes", 1.0),
            ):  # fmt: skip
                said = one.get(measure) or {}
                value = said.get(figure)
                if isinstance(value, (int, float)):
                    heard = _Heard(str(said.get("time")), at_ns, value * unit)
                    _hear(self._heard, (uid, measure), heard)


def _hear(known: dict[_Key, _Heard], key: _Key, new: _Heard) -> None:
    """Records a value, unless it is a repetition, so that repeated values grow old."""
    before = known.get(key)
    if before is None or before.stamp != new.stamp:
        known[key] = new


def _fresh(known: dict[_Key, _Heard]) -> dict[_Key, _Heard]:
    oldest_ns = time.monotonic_ns() - FORGOTTEN_NS
    return {key: one for key, one in known.items() if one.at_ns > oldest_ns}


def _sample(heard: _Heard | None) -> Sample | None:
    return Sample(heard.at_ns, heard.value) if heard else None


@dataclass
class _Share:
    """A tenant's share of one device, from its agent's page."""

    at_ns: int
    figures: dict[str, float] = field(default_factory=dict)
    spent: Rate | None = None


class Agents:
    """Usage of vGPUs relative to their quotas, from the Prometheus page of each agent."""

    def __init__(self, session: aiohttp.ClientSession, window_ns: int) -> None:
        self._session = session
        self._window_ns = window_ns
        self.pages: dict[str, str] = {}
        """The URL of each node's agent, set by the controller, which knows the agents' Pods."""
        self._names: dict[str, set[Who]] = {}  # by node
        self._shares: dict[Who, dict[tuple[str, str], _Share]] = {}  # by tenant and device
        # By node and label text, which does not change from one page to the next.
        self._known: dict[str, dict[str, _Share | None]] = {}
        self._polling: Polling[str] = Polling(
            self._ask, AGENT_S, at_once=AT_ONCE, per_second=PAGES_PER_SECOND
        )

    def want(self, pods: Iterable[Pod]) -> None:
        """Polls for these Pods from now on, and reads only their shares from the pages."""
        names: dict[str, set[Who]] = {}
        for pod in pods:
            if pod.node:
                names.setdefault(pod.node, set()).update(shares_of(pod))
        for node in self._known.keys() - {
            node for node, wanted in names.items() if wanted == self._names.get(node)
        }:
            del self._known[node]
        self._names = names
        self._polling.wanted = set(names)
        self._forget()

    async def run(self) -> None:
        """Polls until cancelled."""
        await self._polling.run()

    def cores_percent(self, names: Iterable[Who]) -> Sample | None:
        """The used device time in percent of the quota, on the device where it is highest."""
        return self._most(names, self._cores)

    def memory_percent(self, names: Iterable[Who]) -> Sample | None:
        """The used device memory in percent of the quota, on the device where it is highest."""
        return self._most(names, self._memory)

    def problem(self, node: str) -> str:
        """Why the page of a node's agent could not be read; empty if it could."""
        return self._polling.problems.get(node, "")

    def _forget(self) -> None:
        oldest_ns = time.monotonic_ns() - FORGOTTEN_NS
        for who, shares in list(self._shares.items()):
            for key in [key for key, one in shares.items() if one.at_ns <= oldest_ns]:
                del shares[key]
                self._known.clear()  # the share may reappear after a gap in reading its page
            if not shares:
                del self._shares[who]

    async def _ask(self, node: str) -> str:
        url = self.pages.get(node)
        if url is None:
            return f"no agent of Penstock is known on node {node}"
        try:
            page = await fetch(self._session, url, most_bytes=MAX_PAGE_BYTES, plain=True)
        except PageError as error:
            return str(error)
        self.take(node, page)
        return ""

    def take(self, node: str, page: str) -> None:
        """Records the wanted shares on the page of a node's agent."""
        at_ns = time.monotonic_ns()
        before, now = self._known.get(node, {}), {}
        for metric in _METRICS:
            for text, value in _series(page, f"penstock_tenant_{metric}{{"):
                if text not in now:
                    now[text] = before[text] if text in before else self._share(node, text)
                share = now[text]
                if share is None:
                    continue
                try:
                    number = float(value)
                except ValueError:
                    continue
                share.at_ns = at_ns
                share.figures[metric] = number
                if metric == "device_seconds_total":
                    if share.spent is None:
                        share.spent = Rate(self._window_ns)
                    share.spent.add(at_ns, number)
        self._known[node] = now

    def _share(self, node: str, text: str) -> _Share | None:
        """The share with these labels; None if it is not wanted."""
        labels = dict(_LABEL.findall(text))
        who = labels.get("namespace", ""), labels.get("pod", "")
        if who not in self._names.get(node, set()):
            return None
        key = labels.get("tenant", ""), labels.get("device_uuid", "")
        return self._shares.setdefault(who, {}).setdefault(key, _Share(0))

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
        quota = share.figures.get("cores_quota_ratio")
        used = share.spent.per_second if share.spent else None
        return None if not quota or used is None else used / quota * 100

    @staticmethod
    def _memory(share: _Share) -> float | None:
        quota = share.figures.get("memory_quota_bytes")
        used = share.figures.get("memory_used_bytes")
        return None if not quota or used is None else used / quota * 100


def shares_of(pod: Pod) -> list[Who]:
    """The names under which an agent may report a Pod's shares: the Pod's and its claims'."""
    return [(pod.namespace, name) for name in (pod.name, *(made for _, made in pod.claims))]


def _series(page: str, head: str) -> Iterator[tuple[str, str]]:
    """Yields labels and value of each line that begins with `head`; such lines are adjacent."""
    at = 0 if page.startswith(head) else page.find("\n" + head) + 1
    while page.startswith(head, at):
        end = page.find("\n", at)
        end = len(page) if end < 0 else end
        labels, _, value = page[at + len(head) : end].rpartition("} ")
        yield labels, value
        at = end + 1
