"""Live views on a terminal: drawn anew every interval, until q, Ctrl-C or a signal."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from rich.console import RenderableType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class View(Protocol):
    """What is shown."""

    def refresh(self) -> None:
        """Takes a new snapshot. Raises `PenstockError`."""

    def draw(self, width: int, height: int) -> RenderableType:
        """The snapshot on a terminal of this size."""

    def typed(self, keys: str) -> None:
        """The user has pressed these keys; q is not among them."""


def show(view: View, interval_s: float) -> None:
    """Draws until q, Ctrl-C or a signal; restores the terminal afterwards, and also on Ctrl-Z."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for size in ("COLUMNS", "LINES"):  # a shell may export an outdated terminal size
        os.environ.pop(size, None)
    for number in (*ENDING, signal.SIGTSTP, signal.SIGWINCH):
        signal.signal(number, ask)
    while True:
        _draw(view, interval_s, asked)
        if any(number in ENDING for number in asked):
            first = next(number for number in asked if number in ENDING)
            if first != signal.SIGINT:
                sys.exit(128 + first)
            return
        if signal.SIGTSTP not in asked:
            return
        asked.clear()
        os.kill(os.getpid(), signal.SIGSTOP)  # the process stops here until `fg`


def _draw(view: View, interval_s: float, asked: list[int]) -> None:
    """Draws until q or a signal other than SIGWINCH."""
    from rich.live import Live

    from penstock.cli.render.table import console

    with _keys() as keys, Live(console=console(), screen=True, auto_refresh=False) as live:
        view.refresh()
        due = time.monotonic() + interval_s
        while True:
            live.update(view.draw(live.console.size.width, live.console.size.height), refresh=True)
            ready, _, _ = select.select(keys, [], [], max(0.0, due - time.monotonic()))
            for descriptor in ready:
                typed = os.read(descriptor, 64).decode(errors="replace")
                if descriptor != sys.stdin.fileno():
                    continue  # a signal interrupted the wait
                if "q" in typed.lower() or not typed:
                    return
                view.typed(typed)
            if any(number != signal.SIGWINCH for number in asked):
                return
            asked.clear()
            if time.monotonic() >= due:
                view.refresh()
                due = time.monotonic() + interval_s


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
