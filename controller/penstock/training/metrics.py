"""Metrics of a run: the table of them, and the page that its supervisor serves to Prometheus."""

from __future__ import annotations

import contextlib
import math
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from penstock.model import PenstockError
from penstock.model.address import read_address
from penstock.node.metering.exporter import families
from penstock.node.metering.http_server import Page, PageServer
from penstock.node.metering.metrics import Metric, one
from penstock.training.figures import programs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from penstock.card.published import CardFigures, ProgramFigures
    from penstock.training.run import Event, Run, State

RUN = ("project", "run")
CARD = ("project", "run", "card")


class Seen(NamedTuple):
    """A run as a scrape finds it."""

    state: State
    events: list[Event]


RUNS: tuple[Metric[Seen], ...] = (
    Metric(
        "penstock_train_phase", "gauge", "", "Always 1; the label is the phase of the run.",
        lambda of: {of.state.phase: 1.0}, ("phase",),
    ),
    Metric(
        "penstock_train_attempts_total", "counter", "", "How often the program was started.",
        lambda of: sum(one.event == "started" for one in of.events),
    ),
    Metric(
        "penstock_train_restarts_total", "counter", "",
        "How often the program, or the preparation of its data, failed and was started again.",
        lambda of: sum(one.event == "restarting" for one in of.events),
    ),
    Metric(
        "penstock_train_cards_lost_total", "counter", "",
        "How often cards were lost and started again.",
        lambda of: sum(one.event == "card-lost" for one in of.events),
    ),
)  # fmt: skip

PROGRAMS: tuple[Metric[ProgramFigures], ...] = (
    Metric(
        "penstock_train_steps_total", "counter", "", "Backward passes in this attempt.",
        lambda of: of.steps,
    ),
    Metric(
        "penstock_train_samples_total", "counter", "",
        "Rows of the batches of these passes; no sample where they are not known.",
        lambda of: of.samples,
    ),
    Metric(
        "penstock_train_loss", "gauge", "",
        "The last loss that was read, at most once a second; NaN if it is no finite number.",
        lambda of: of.loss if of.is_loss_finite else math.nan,
    ),
    Metric(
        "penstock_train_waited_seconds_total", "counter", "seconds",
        "How long the program has waited for its cards.", lambda of: of.waited_s,
    ),
    Metric(
        "penstock_train_copy_age_seconds", "gauge", "seconds",
        "Age of the copy from which lost cards are restored.", lambda of: of.copy_age_s,
    ),
)  # fmt: skip

CARDS: tuple[Metric[CardFigures], ...] = (
    Metric(
        "penstock_train_card_info", "gauge", "", "Always 1; the labels say which card it is.",
        lambda of: one(of.node, of.kind), ("node", "kind"),
    ),
    Metric(
        "penstock_train_card_share_ratio", "gauge", "ratio",
        "Its part of the rows of each batch.", lambda of: of.share,
    ),
    Metric(
        "penstock_train_card_busy_ratio", "gauge", "ratio",
        "How much of the last second it worked.", lambda of: of.busy_percent / 100,
    ),
    Metric(
        "penstock_train_card_busy_seconds_total", "counter", "seconds", "How long it has worked.",
        lambda of: of.busy_s,
    ),
    Metric(
        "penstock_train_card_exchange_seconds_total", "counter", "seconds",
        "How long it exchanged data with other cards, or waited for them.", lambda of: of.cards_s,
    ),
    Metric(
        "penstock_train_card_uploaded_bytes_total", "counter", "bytes",
        "Bytes that it got from the program.", lambda of: of.uploaded_bytes,
    ),
    Metric(
        "penstock_train_card_downloaded_bytes_total", "counter", "bytes",
        "Bytes that the program got from it.", lambda of: of.downloaded_bytes,
    ),
    Metric(
        "penstock_train_card_gathered_bytes_total", "counter", "bytes",
        "Bytes that it got from other cards because an operation needed all.",
        lambda of: of.gathered_bytes,
    ),
    Metric(
        "penstock_train_card_summed_bytes_total", "counter", "bytes",
        "Bytes that it added up with other cards, such as gradients.", lambda of: of.summed_bytes,
    ),
    Metric(
        "penstock_train_card_memory_used_bytes", "gauge", "bytes", "Memory of tensors on it.",
        lambda of: of.used_bytes,
    ),
)  # fmt: skip

GROUPS = ((RUN, RUNS), (RUN, PROGRAMS), (CARD, CARDS))


class MetricsPage(Collector):
    """The metrics of one run, served until it is closed."""

    def __init__(self, run: Run, state: Callable[[], State], address: str) -> None:
        """Begins to serve; `state`: how the run is. Raises `PenstockError` as `check_address`."""
        self._run, self._state = run, state
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._server = PageServer({"/metrics": self._page, "/": self._page})
        host, port = read_address(address)
        check_address(address)
        self._server.start(host, port)

    def close(self) -> None:
        """Stops serving."""
        self._server.close()

    def _page(self, accept: str) -> Page:
        encode, kind = choose_encoder(accept)
        return Page(HTTPStatus.OK, kind, encode(self._registry))

    def describe(self) -> Iterable[Family]:
        """Describes no families in advance: which samples exist is known when they are read."""
        return ()

    def collect(self) -> Iterator[Family]:
        """All metric families."""
        state = self._state()
        labels = (self._run.project, self._run.name)
        programs = programs_of(state.pid)[:1]
        yield from families(RUNS, RUN, [(labels, Seen(state, self._run.events()))])
        yield from families(PROGRAMS, RUN, [(labels, one) for one in programs])
        cards: list[tuple[tuple[str, ...], CardFigures]] = [
            ((*labels, str(i)), card) for one in programs for i, card in enumerate(one.cards)
        ]
        yield from families(CARDS, CARD, cards)


def check_address(address: str) -> None:
    """Sees that metrics can be served at HOST:PORT now.

    Raises:
        PenstockError: the port is taken, or this machine has no such address.
    """
    host, port = read_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.closing(socket.socket(family, kind, protocol)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen()
    except OSError as error:
        raise PenstockError(
            f"cannot serve metrics on {address}", error.strerror or str(error),
            "name another address with metrics or --metrics",
        ) from error  # fmt: skip
