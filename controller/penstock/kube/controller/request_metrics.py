"""Request metrics: requests a second, from a workload's own page in Prometheus' text format.

The owner of a workload names the page, and this process fetches it from inside the cluster. So the
page must be served by the workload's own Pods or a Service of its namespace. The API server
provides their addresses, so that no foreign DNS server can redirect the request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import aiohttp

from penstock.autoscaling.request_rate import read_metric
from penstock.kube.controller.polling import Polling
from penstock.kube.objects.api_client import ApiError, Kind
from penstock.scheduling.replicas.decide import Sample
from penstock.scheduling.replicas.rates import Rate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from urllib.parse import SplitResult

    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.workloads import Pod, Workload

# The pages that are fetched: those in the workload's own namespace, at any address, or none.
Reach = Literal["namespace", "anywhere", "off"]
SERVICES = Kind("v1", "services")
POD = "{pod}"
PAGE_S = 2.0
PAGE_TIMEOUT_S = 4.0
AT_ONCE, PER_SECOND = 64, 400.0
OF_A_NAMESPACE, OF_A_NAMESPACE_PER_SECOND = 4, 20.0
MOST_BYTES = 2 << 20  # of a page, because many pages are in memory at the same time
LOOKED_UP_S = 30.0  # how long the address of a Service is used without another look-up


@dataclass(frozen=True)
class Page:
    """A page with the request metric of a workload."""

    namespace: str
    url: str  # as its owner wrote it
    metric: str
    address: str = ""  # of the Pod whose page it is; empty if it is not a Pod's page


@dataclass
class _Read:
    rate: Rate
    last: Sample | None = None
    address: str = ""  # of the page's Service
    looked_up_s: float = 0.0  # monotonic


class PageError(Exception):
    """A page could not be read; the message names the page and the reason."""


def fault_of(workload: Workload, reach: Reach, annotations: tuple[str, str]) -> str:
    """Why requests a second of a workload cannot be measured; empty if they can.

    `annotations` contains the names of the annotations for the URL and the metric.
    """
    cannot = "qps is unknown: "
    if reach == "off":
        return cannot + "this cluster fetches no pages of workloads (control.qpsPages is off)"
    if not workload.qps_url or not workload.qps_metric:
        return cannot + f"{workload.kind} needs the annotations {', '.join(annotations)}"
    parts = _parts(workload.qps_url)
    if parts is None:
        return cannot + (
            f"{annotations[0]} is not an http or https URL such as http://{POD}:9000/metrics"
        )
    if reach == "namespace" and parts.hostname != POD and not _service(parts, workload.namespace):
        return cannot + (
            f"{annotations[0]} must name {POD} or a Service of the namespace {workload.namespace}, "
            f"such as http://gateway.{workload.namespace}:9000/metrics, not {parts.hostname}"
        )
    return ""


def pages_of(workload: Workload, pods: Iterable[Pod]) -> list[Page]:
    """The pages of a workload for which `fault_of` finds no fault."""
    where = (workload.namespace, workload.qps_url, workload.qps_metric)
    if POD not in workload.qps_url:
        return [Page(*where)]
    return [Page(*where, pod.address) for pod in pods if pod.address and not pod.on_host]


class Pages:
    """The metrics of all wanted pages. Counters are converted into rates."""

    def __init__(
        self, session: aiohttp.ClientSession, window_ns: int, api: Api | None, reach: Reach
    ) -> None:
        """`api` looks up Services, and is required for the reach "namespace"."""
        self.reach = reach
        self._session = session
        self._window_ns = window_ns
        self._api = api
        self._read: dict[Page, _Read] = {}
        self._polling: Polling[Page] = Polling(
            self._ask, PAGE_S, at_once=AT_ONCE, per_second=PER_SECOND,
            group=lambda page: page.namespace, group_at_once=OF_A_NAMESPACE,
            group_per_second=OF_A_NAMESPACE_PER_SECOND,
        )  # fmt: skip

    def want(self, pages: Iterable[Page]) -> None:
        """Polls only these pages from now on."""
        self._polling.wanted = set(pages)
        for gone in self._read.keys() - self._polling.wanted:
            del self._read[gone]

    async def run(self) -> None:
        """Polls until cancelled."""
        await self._polling.run()

    def per_second(self, page: Page) -> Sample | None:
        """The newest sample of requests a second."""
        found = self._read.get(page)
        return found.last if found else None

    def problem(self, page: Page) -> str:
        """Why there is no sample, or no recent one."""
        return self._polling.problems.get(page, "")

    async def _ask(self, page: Page) -> str:
        read = self._read.setdefault(page, _Read(Rate(self._window_ns)))
        try:
            text = await self._fetch(page, read)
        except PageError as error:
            return str(error)
        found = read_metric(text, page.metric)
        if found is None:
            return f"{page.url}: no metric {page.metric}"
        at_ns = time.monotonic_ns()
        if not found[1]:
            read.last = Sample(at_ns, found[0])
            return ""
        read.rate.add(at_ns, found[0])
        rate = read.rate.per_second
        read.last = None if rate is None else Sample(at_ns, rate)
        return ""

    async def _fetch(self, page: Page, read: _Read) -> str:
        parts = _parts(page.url)
        if parts is None:
            raise PageError(f"{page.url}: not an http or https URL")
        if self.reach == "anywhere":
            host = page.address and (f"[{page.address}]" if ":" in page.address else page.address)
            return await fetch(self._session, page.url.replace(POD, host))
        address = page.address or await self._address_of(page, parts, read)
        place = f"[{address}]" if ":" in address else address
        place += f":{parts.port}" if parts.port is not None else ""
        url = parts._replace(netloc=place).geturl()
        if page.address:
            return await fetch(self._session, url)
        return await fetch(self._session, url, host=parts.netloc, name=parts.hostname)

    async def _address_of(self, page: Page, parts: SplitResult, read: _Read) -> str:
        now_s = time.monotonic()
        if not read.address or now_s - read.looked_up_s > LOOKED_UP_S:
            name = _service(parts, page.namespace)
            if self._api is None or not name:
                raise PageError(f"{page.url}: not a Service of the namespace {page.namespace}")
            try:
                found = await self._api.get(SERVICES, name, page.namespace)
            except ApiError as error:
                read.address = ""
                raise PageError(f"{page.url}: {error}") from error
            read.address, read.looked_up_s = address_of(found), now_s
        if not read.address:
            raise PageError(f"{page.url}: the Service must select Pods and have a cluster address")
        return read.address


def address_of(service: Object) -> str:
    """The cluster address of a Service that selects Pods of its namespace; empty if it has none.

    A Service without a selector may point anywhere, as may an ExternalName, so both have none.
    """
    spec = service.get("spec") or {}
    if spec.get("type") == "ExternalName" or not spec.get("selector"):
        return ""
    try:
        return str(ipaddress.ip_address(str(spec.get("clusterIP"))))
    except ValueError:  # "None"
        return ""


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    *,
    host: str = "",
    name: str | None = None,
    most_bytes: int = MOST_BYTES,
    plain: bool = False,
) -> str:
    """Fetches the page at an http(s) URL without following redirects.

    Args:
        session: The session, whose timeout limits the whole request.
        url: The URL to request.
        host: Host header of the request; the URL's host if empty.
        name: Host name that the server's certificate must have; the URL's host if None.
        most_bytes: The maximum size of a page.
        plain: Whether to request the page uncompressed, if compression takes longer than sending.

    Raises:
        PageError: the server does not respond with a page of at most `most_bytes`.
    """
    headers = {"Host": host} if host else {}
    headers |= {"Accept-Encoding": "identity"} if plain else {}
    said = f"{url} ({host})" if host else url
    try:
        async with session.get(
            url, allow_redirects=False, headers=headers, server_hostname=name
        ) as answer:
            if answer.status != 200:
                raise PageError(f"{said}: HTTP status {answer.status}")
            if answer.content_length is not None and "Content-Encoding" not in answer.headers:
                if answer.content_length > most_bytes:
                    raise PageError(f"{said}: more than {most_bytes} bytes")
                return (await answer.read()).decode(errors="replace")
            parts, size = [], 0
            async for part in answer.content.iter_chunked(1 << 16):
                parts.append(part)
                size += len(part)
                if size > most_bytes:
                    raise PageError(f"{said}: more than {most_bytes} bytes")
            return b"".join(parts).decode(errors="replace")
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        raise PageError(f"{said}: {str(error) or type(error).__name__}") from error


def _parts(url: str) -> SplitResult | None:
    """Splits a URL; None if it is not http or https, or has a user name and password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        return None
    return parts


def _service(parts: SplitResult, namespace: str) -> str:
    """The Service that a URL names as `name`, `name.namespace` or `….svc…`; empty if none."""
    name, *further = (parts.hostname or "").split(".")
    if not name or (further and further[0] != namespace):
        return ""
    if len(further) > 1 and further[1] != "svc":
        return ""
    return name if name.replace("-", "").isalnum() and not name.isdigit() else ""
