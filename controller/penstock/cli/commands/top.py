"""`penstock top`: devices and tenants, live."""

from __future__ import annotations

import contextlib
import json
import os
import select
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

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from penstock.cli.render.feed import Feed
    from penstock.web.address import Address

HELP = "q quits, c m n sort"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
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
            _show(feed, interval)
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


def _show(feed: Feed, interval_s: float) -> None:
    """Draws until q, Ctrl-C or a signal; restores the terminal afterwards, and also on Ctrl-Z."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for size in ("COLUMNS", "LINES"):  # a shell may export an outdated terminal size
        os.environ.pop(size, None)
    for number in (*ENDING, signal.SIGTSTP, signal.SIGWINCH):
        signal.signal(number, ask)
    order = "cores"
    while True:
        order = _draw(feed, interval_s, order, asked)
        if any(number in ENDING for number in asked):
            first = next(number for number in asked if number in ENDING)
            if first != signal.SIGINT:
                sys.exit(128 + first)
            return
        if signal.SIGTSTP not in asked:
            return
        asked.clear()
        os.kill(os.getpid(), signal.SIGSTOP)  # the process stops here until `fg`


def _draw(feed: Feed, interval_s: float, order: str, asked: list[int]) -> str:
    """Draws until q or a signal other than SIGWINCH; returns the last sort order."""
    from rich.live import Live

    from penstock.cli.render.screen import screen
    from penstock.cli.render.table import console

    with _keys() as keys, Live(console=console(), screen=True, auto_refresh=False) as live:
        picture, due = feed.picture(), time.monotonic() + interval_s
        while True:
            size = live.console.size
            live.update(
                screen(picture, width=size.width, height=size.height, order=order, help_=HELP),
                refresh=True,
            )
            ready, _, _ = select.select(keys, [], [], max(0.0, due - time.monotonic()))
            for descriptor in ready:
                typed = os.read(descriptor, 64).decode(errors="replace")
                if descriptor != sys.stdin.fileno():
                    continue  # a signal interrupted the wait
                if "q" in typed.lower() or not typed:
                    return order
                order = next((ORDER_OF[key] for key in typed if key in ORDER_OF), order)
            if any(number != signal.SIGWINCH for number in asked):
                return order
            asked.clear()
            if time.monotonic() >= due:
                picture, due = feed.picture(), time.monotonic() + interval_s


@contextlib.contextmanager
def _keys() -> Iterator[list[int]]:
    """Descriptors to wait on: one for signals, and stdin for single keys if it is a terminal."""
    import termios
    import tty

    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(woken)
    settings = None
    try:
        watched = [wake]
        if sys.stdin is not None and sys.stdin.isatty():
            settings = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
            watched.append(sys.stdin.fileno())
        yield watched
    finally:
        if settings is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
        signal.set_wakeup_fd(before)
        os.close(wake)
        os.close(woken)
