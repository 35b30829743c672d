"""`penstock top`: devices and tenants, live."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import (
    Output,
    OutputFormat,
    StateDir,
    Web,
    WebAddress,
    WebOpen,
    finite,
)
from penstock.cli.render.live import ENDING, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.cli.render.feed import Feed, Picture
    from penstock.web.address import Address

HELP = "q quits, c m n sort"
ORDER_OF = {"c": "cores", "m": "memory", "n": "name"}


def top(
    interval: Annotated[
        float,
        typer.Option(min=0.1, max=86400, callback=finite, help="Seconds between updates."),
    ] = 1.0,
    output: OutputFormat = Output.table,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="With -o json: print a line every interval until stopped."),
    ] = False,
    state_dir: StateDir = None,
    web: Web = False,
    web_address: WebAddress = None,
    web_open: WebOpen = False,
) -> None:
    """Show devices and tenants live, with quota and usage. q or Ctrl-C quits.

    If an agent runs, every user sees all of its tenants; otherwise only your own tenants are shown.
    Press c, m or n to sort by cores, memory or name. With --web, a page in the browser shows it.
    """
    from penstock.cli.render.feed import open_feed
    from penstock.cli.web_page import address_of

    address = address_of(web, web_address, web_open)
    if address is not None:  # before there are threads, which would take the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    feed = open_feed(state_dir, interval)
    try:
        if address is not None:
            _serve(feed, address)
        elif output is not Output.table:
            _print_data(feed, output, interval, watch=watch)
        elif once or not sys.stdout.isatty():
            from penstock.cli.render.screen import screen
            from penstock.cli.render.table import console

            page = console()
            page.print(screen(feed.picture(), width=page.width))
        else:
            show(_FeedView(feed), interval)
    finally:
        feed.close()


def _serve(feed: Feed, address: Address) -> None:
    """Serves the web page until Ctrl-C or SIGTERM."""
    from penstock.cli.log import log_as
    from penstock.cli.render.web_node import SAMPLED_EVERY_S, WebNode
    from penstock.cli.web_page import page_of

    page = page_of(address, WebNode(feed), log_as("penstock top"), SAMPLED_EVERY_S)
    try:
        page.start()
        print(f"{page.url} shows this node until Ctrl-C", flush=True)
        signal.sigwait(ENDING)
    finally:
        page.stop()


def _print_data(feed: Feed, output: Output, interval_s: float, *, watch: bool) -> None:
    from penstock.cli.render.output import print_data

    if not watch:
        print_data([line.as_dict() for line in feed.picture().tenants], output)
        return
    while True:
        print(json.dumps([line.as_dict() for line in feed.picture().tenants]), flush=True)
        time.sleep(interval_s)


class _FeedView:
    """The snapshots of a feed; keys choose the order."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._picture: Picture | None = None
        self._order = "cores"

    def refresh(self) -> None:
        self._picture = self._feed.picture()

    def draw(self, width: int, height: int) -> RenderableType:
        from penstock.cli.render.screen import screen

        if self._picture is None:
            return ""
        return screen(self._picture, width=width, height=height, order=self._order, help_=HELP)

    def typed(self, keys: str) -> None:
        self._order = next((ORDER_OF[key] for key in keys if key in ORDER_OF), self._order)
