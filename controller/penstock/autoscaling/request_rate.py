"""Request rate of replicas, scraped from Prometheus pages of servers or of a load balancer.

Each page has its own thread, so that a hanging server blocks nothing else. A counter is converted
to a rate; a gauge is used as it is. A page that cannot be read yields no value.
"""

from __future__ import annotations

import math
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.scheduling.replicas.decide import Sample
from penstock.scheduling.replicas.rates import Rate

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_S = 0.5
TIMEOUT_S = 2.0  # for a whole page
MAX_PAGE_BYTES = 8 << 20
STALE_NS = 5 * 10**9  # an older value is not returned
_COUNTER_ENDINGS = ("_total", "_count", "_sum", "_bucket")
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# Matches within one line; otherwise every unclosed brace would cause a search to the page's end.
_LABELS = r'(?:\{(?:[^"}\n]|"(?:\\.|[^"\\\n])*")*\})?'


class PageUnreadableError(Exception):
    """The page could not be read, or it lacks the metric, as the message says."""


def read_metric(text: str, name: str) -> tuple[float, bool] | None:
    """The sum of all series of `name`, and whether it is a counter; None without such series."""
    series = re.compile(rf"^{re.escape(name)}{_LABELS}[ \t]+(\S+)", re.MULTILINE)
    values = []
    for match in series.finditer(text):
        try:
            value = float(match[1])
        except ValueError:
            continue
        if math.isfinite(value):
            values.append(value)
    if not values:
        return None
    # OpenMetrics names a counter's family without the suffix that its series have.
    family = re.search(
        rf"^# TYPE (?:{re.escape(name)}|{re.escape(name.removesuffix('_total'))}) (\w+)",
        text,
        re.MULTILINE,
    )
    if family and family[1] in {"counter", "gauge"}:
        return math.fsum(values), family[1] == "counter"
    return math.fsum(values), name.endswith(_COUNTER_ENDINGS)


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """The page at an http(s) or file URL. Raises `PageUnreadableError`; takes about `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "file":
            with Path(urllib.parse.unquote(parts.path)).open("rb") as stream:
                body = stream.read(MAX_PAGE_BYTES + 1)
        else:
            # No proxy is used, because the page is on this machine or near it.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=timeout_s) as answer:
                body = _read(answer.read1, deadline)
    except urllib.error.HTTPError as error:
        error.close()
        raise PageUnreadableError(f"{url}: HTTP status {error.code}") from error
    except Exception as error:
        raise PageUnreadableError(f"{url}: {getattr(error, 'reason', None) or error}") from error
    if len(body) > MAX_PAGE_BYTES:
        raise PageUnreadableError(f"{url}: more than {MAX_PAGE_BYTES} bytes")
    return body.decode(errors="replace")


def _read(read_some: Callable[[int], bytes], deadline: float) -> bytes:
    """The whole response. Raises TimeoutError if it is not complete by the deadline."""
    parts, size = [], 0
    while size <= MAX_PAGE_BYTES:
        if time.monotonic() > deadline:
            raise TimeoutError("the response takes too long")
        part = read_some(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


@dataclass
class _Page:
    """One metrics page and its last value."""

    url: str
    rate: Rate
    wanted_until_ns: int
    last: Sample | None = None
    problem: str = ""
    thread: threading.Thread | None = field(default=None, repr=False)


class Requests:
    """Requests per second to each replica of a set, or to all replicas together.

    A URL that contains `{replica}` stands for one page per replica. `{replica+8000}` is replaced by
    the replica's number plus 8000, for use as a port. Any other URL gives the demand of all
    replicas.
    """

    def __init__(self, url: str, metric: str, window_ns: int) -> None:
        """Raises `PenstockError` for an unusable URL or metric name."""
        scheme = urllib.parse.urlsplit(url).scheme
        if scheme not in {"http", "https", "file"}:
            raise PenstockError(
                f"cannot read {url!r}",
                f"{scheme!r} is not http, https or file",
                "give a full URL, such as http://127.0.0.1:9090/metrics",
            )
        if not _METRIC_NAME.fullmatch(metric):
            raise PenstockError(
                f"{metric!r} is not a valid metric name",
                "a name has only letters, digits, '_' and ':'",
                "give it without labels, such as http_requests_total; all its series are added up",
            )
        self._url = url
        self._metric = metric
        self._window_ns = window_ns
        self._pages: dict[int, _Page] = {}
        self.each = _replica_url(url, 1) != url

    def of_replica(self, number: int) -> Sample | None:
        """The latest value of one replica."""
        return self._ask(number, _replica_url(self._url, number))

    def total(self) -> Sample | None:
        """The latest value of all replicas together."""
        return self._ask(0, self._url)

    def problems(self) -> list[str]:
        """The reasons why values are missing."""
        now_ns = time.monotonic_ns()
        return [p.problem for p in self._pages.values() if p.problem and p.wanted_until_ns > now_ns]

    def _ask(self, number: int, url: str) -> Sample | None:
        now_ns = time.monotonic_ns()
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _Page(url, Rate(self._window_ns), 0)
        page.wanted_until_ns = now_ns + STALE_NS  # without further calls, the thread then ends
        if page.thread is None or not page.thread.is_alive():
            page.rate = Rate(self._window_ns)
            page.thread = threading.Thread(target=self._follow, args=(page,), daemon=True)
            page.thread.start()
        last = page.last
        return last if last is not None and now_ns - last.at_ns <= STALE_NS else None

    def _follow(self, page: _Page) -> None:
        """Main function of the thread of one page."""
        while time.monotonic_ns() < page.wanted_until_ns:
            began = time.monotonic()
            try:
                found = read_metric(fetch(page.url), self._metric)
                at_ns = time.monotonic_ns()
                if found is None:
                    page.problem = f"{page.url}: no metric {self._metric}"
                elif found[1]:
                    page.rate.add(at_ns, found[0])
                    rate = page.rate.per_second
                    page.last = None if rate is None else Sample(at_ns, rate)
                    page.problem = ""
                else:
                    page.last, page.problem = Sample(at_ns, found[0]), ""
            except PageUnreadableError as error:
                page.problem = str(error)
            time.sleep(max(0.0, began + PERIOD_S - time.monotonic()))


def _replica_url(url: str, number: int) -> str:
    """`url` with `{replica}` and `{replica+8000}` replaced for one replica."""
    return re.sub(
        r"\{replica(?:\+(\d{1,9}))?\}", lambda match: str(number + int(match[1] or 0)), url
    )
