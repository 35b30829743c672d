"""Prometheus endpoint, which serves the snapshot of the agent's last reconcile iteration.

One thread serves all scrapes and builds the page at most once a second, so a node that is not
scraped has no cost. If the loop hangs, the endpoint still responds, and the heartbeat age shows the
hang.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from penstock.node.metering import metrics
from penstock.node.metering.http_server import Page, PageServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.metrics_core import Metric as Family

    from penstock.node.metering.metrics_snapshot import NodeSnapshot
    from penstock.node.metering.reading import Identity

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 9470
STUCK_S = 30.0  # a loop that is silent for this long will not recover; as in systemd's watchdog
KEPT_S = 1.0  # how long a page is cached
Of = TypeVar("Of")


class Exporter(Collector):
    """The exporter. Call `publish` after each iteration of the loop, and `serve` once."""

    def __init__(self, node: str) -> None:
        """`node`: this node's name, which is the first label of every metric."""
        self._node = node
        self._look: Callable[[], NodeSnapshot] | None = None
        self._loop_counts = [0] * (len(metrics.LOOP.bounds_s) + 1)
        self._loop_s = 0.0
        self._published_s: float | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._servers: list[PageServer] = []
        # By content type: time of the iteration it shows, time when it was built, and the page.
        self._pages: dict[str, tuple[float | None, float, Page]] = {}

    def publish(self, look: Callable[[], NodeSnapshot], loop_s: float) -> None:
        """Makes scrapes call `look` for the snapshot, in the thread that serves them.

        `loop_s`: the duration of the last iteration.
        """
        self._loop_counts[bisect.bisect_left(metrics.LOOP.bounds_s, loop_s)] += 1
        self._loop_s += loop_s
        self._look = look
        self._published_s = time.monotonic()

    def serve(
        self,
        address: str = DEFAULT_ADDRESS,
        port: int = DEFAULT_PORT,
        report: Callable[..., None] = lambda event, **fields: None,  # noqa: ARG005
    ) -> int | None:
        """Serves /metrics and /healthz over HTTP.

        There is no authentication and no encryption, so beyond loopback the network must provide
        them.

        Args:
            address: The address to listen on.
            port: The port; 0 for any free port.
            report: Called as `report(event, **fields)` when the port is taken, and when it is free
                again.

        Returns:
            The port, or None if it is taken; binding is then retried every few seconds.

        Raises:
            PenstockError: this machine has no such address.
        """
        pages = {"/metrics": self._metrics, "/": self._metrics, "/healthz": self._healthz}
        return self._start(PageServer(pages, report), address, port)

    def serve_probes(
        self,
        address: str,
        port: int,
        report: Callable[..., None] = lambda event, **fields: None,  # noqa: ARG005
    ) -> int | None:
        """Serves only /healthz, in a separate thread; otherwise like `serve`."""
        return self._start(PageServer({"/healthz": self._healthz}, report), address, port)

    def _start(self, server: PageServer, address: str, port: int) -> int | None:
        found = server.start(address, port)
        self._servers.append(server)
        return found

    def health(self) -> str:
        """Why a watchdog or probe should restart this process, empty if it is healthy."""
        if self._published_s is None:
            return "no round has ended yet"
        silent_s = time.monotonic() - self._published_s
        return f"no round has ended for {silent_s:.0f} s" if silent_s > STUCK_S else ""

    def _healthz(self, _: str) -> Page:
        problem = self.health()
        status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
        return Page(status, "text/plain", f"{problem or 'ok'}\n".encode())

    def _metrics(self, accept: str) -> Page:
        """The metrics page, built once per iteration, or once a second if the loop hangs."""
        encode, kind = choose_encoder(accept)
        round_s, now_s = self._published_s, time.monotonic()
        of_s, made_s, page = self._pages.get(kind, (None, 0.0, None))
        if page is None or of_s != round_s or now_s - made_s >= KEPT_S:
            page = Page(HTTPStatus.OK, kind, encode(self._registry))
            self._pages[kind] = (round_s, now_s, page)
        return page

    def close(self) -> None:
        """Stops serving. May be called more than once."""
        while self._servers:
            self._servers.pop().close()

    def describe(self) -> Iterable[Family]:
        """Describes no families in advance, because the snapshot decides which samples exist."""
        return ()

    def collect(self) -> Iterator[Family]:
        """All metric families; a family without samples has only its name, type and help."""
        if self._look is None:
            return
        snapshot, now_ns = self._look(), time.monotonic_ns()
        node = (self._node,)
        yield from families(metrics.AGENT, metrics.NODE, [(node, (snapshot, now_ns))])
        yield self._loop_family()
        yield from families(
            metrics.DEVICES,
            metrics.DEVICE,
            [((*node, one.device_uuid), one) for one in snapshot.devices],
        )
        tenants = [((*node, *_labels(one.identity)), one) for one in snapshot.tenants]
        yield from families(metrics.TENANTS, metrics.TENANT, tenants)
        yield from families(
            metrics.PAGES, metrics.TENANT, [(labels, (one, now_ns)) for labels, one in tenants]
        )
        yield from families(
            metrics.SHARES,
            metrics.SHARE,
            [
                ((*node, share.device_uuid, *_labels(one.identity)), share)
                for one in snapshot.tenants
                for share in one.shares
            ],
        )

    def _loop_family(self) -> Family:
        family = HistogramMetricFamily(metrics.LOOP.name, metrics.LOOP.help, labels=metrics.NODE)
        counts, below = list(self._loop_counts), 0
        buckets = []
        for bound, count in zip([*map(str, metrics.LOOP.bounds_s), "+Inf"], counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric([self._node], buckets, self._loop_s)
        return family


def _labels(who: Identity) -> tuple[str, ...]:
    return who.namespace, who.pod, who.container, who.tenant


def families(
    described: Iterable[metrics.Metric[Of]],
    labels: tuple[str, ...],
    things: list[tuple[tuple[str, ...], Of]],
) -> Iterator[Family]:
    """The metric families of a table, with a sample for each of `things`, labels first."""
    for metric in described:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=(*labels, *metric.more_labels))
        for values, thing in things:
            value = metric.value(thing)
            if isinstance(value, Mapping):
                for more, number in value.items():
                    last = (more,) if isinstance(more, str) else more
                    family.add_metric((*values, *last), number)
            elif value is not None:
                family.add_metric(values, value)
        yield family
