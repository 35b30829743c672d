"""`LocalJob`: a training job on cards of this machine, each of which runs the user's command."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError, printable
from penstock.training.names import VARIABLE, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.training.card import Card

LOOKS_S = 0.05
ENDS_WITHIN_S = 10.0  # after it was told to
LAST_LINES = 15
_MOST_TAIL_BYTES = 16 << 10
_PR_SET_PDEATHSIG = 1


class LocalJob:
    """The ranks of one job. Rank 0 has the user's output; what the others print goes to files."""

    def __init__(
        self, cards: Sequence[Card], command: Sequence[str], seed: int, say: Callable[[str], None]
    ) -> None:
        """`say` prints a message to the user."""
        self._cards = cards
        self._command = list(command)
        self._seed = seed
        self._say = say
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._signal = 0  # that was received
        self._told_at_s: float | None = None

    def run(self) -> int:
        """Runs the job to its end; returns the exit status of the first rank that failed, or 0.

        SIGINT, SIGTERM and SIGHUP are passed on to all ranks.

        Raises:
            PenstockError: the command cannot be started.
        """
        folder = Path(tempfile.mkdtemp(prefix="penstock-train-"))
        former = {one: signal.signal(one, self._pass_on)
                  for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}  # fmt: skip
        try:
            self._start(folder)
            status = self._wait(folder)
        finally:
            self._end_all()
            for number, handler in former.items():
                signal.signal(number, handler)
        if status == 0 or self._signal:
            shutil.rmtree(folder, ignore_errors=True)
        return 128 + self._signal if self._signal else status

    def _start(self, folder: Path) -> None:
        weights = tuple(one.weight for one in self._cards)
        store = f"127.0.0.1:{_free_port()}"
        cpu_cards = sum(one.kind == "cpu" for one in self._cards)
        for rank, card in enumerate(self._cards):
            place = Place(rank, len(self._cards), store, self._seed, weights)
            environment = {
                **os.environ, "GLOO_SOCKET_IFNAME": "lo", **card.variables(cpu_cards),
                VARIABLE: str(place),
            }  # fmt: skip
            with contextlib.ExitStack() as files:
                log = files.enter_context(self._log(folder, rank).open("wb")) if rank else None
                try:
                    self._ranks.append(subprocess.Popen(
                        self._command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                        stderr=log, start_new_session=True,
                        preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
                    ))  # fmt: skip
                except (OSError, ValueError) as error:
                    why = error.strerror if isinstance(error, OSError) else str(error)
                    raise PenstockError(
                        f"cannot start {printable(self._command[0])[:80]}", why or str(error),
                        "write penstock train run --card … -- COMMAND, as your shell finds it",
                    ) from error  # fmt: skip

    def _wait(self, folder: Path) -> int:
        """Waits until all have ended; the first failure ends the others."""
        while running := [one for one in self._ranks if one.poll() is None]:
            failed = next((i for i, one in enumerate(self._ranks) if one.returncode), None)
            if failed is not None and not self._signal:
                self._tell(folder, failed)
                return _status(self._ranks[failed])
            if self._told_at_s is not None and time.monotonic() > self._told_at_s + ENDS_WITHIN_S:
                self._say(f"{len(running)} ranks do not end, and are killed")
                return 1
            time.sleep(LOOKS_S)
        for rank, one in enumerate(self._ranks):
            if one.returncode and not self._signal:
                self._tell(folder, rank)
                return _status(one)
        return 0

    def _tell(self, folder: Path, rank: int) -> None:
        code = self._ranks[rank].returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        others = "; the other ranks are ended" if len(self._ranks) > 1 else ""
        self._say(f"rank {rank} ({self._cards[rank]}) {how}{others}")
        log = self._log(folder, rank)
        if rank and (lines := _tail(log)):
            self._say(f"its last lines ({log}):")
            for line in lines:
                self._say(f"  {line}")

    def _log(self, folder: Path, rank: int) -> Path:
        return folder / f"rank-{rank}.log"

    def _pass_on(self, number: int, _frame: object) -> None:
        if self._signal:  # asked twice
            self._send(signal.SIGKILL)
        self._signal = number
        self._told_at_s = time.monotonic()
        self._send(number)

    def _send(self, number: int) -> None:
        for one in self._ranks:
            if one.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(one.pid, number)

    def _end_all(self) -> None:
        """Ends what is left: asked first, killed at last."""
        self._send(signal.SIGTERM)
        until_s = time.monotonic() + (0.0 if self._told_at_s else ENDS_WITHIN_S)
        while time.monotonic() < until_s and any(one.poll() is None for one in self._ranks):
            time.sleep(LOOKS_S)
        self._send(signal.SIGKILL)
        for one in self._ranks:
            one.wait()


def _end_with_parent() -> None:
    """The kernel ends a rank with the job, however the job ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _status(ended: subprocess.Popen[bytes]) -> int:
    return 128 - ended.returncode if ended.returncode < 0 else ended.returncode


def _tail(file: Path) -> list[str]:
    """The last lines of a rank's output, as they may be shown on a terminal."""
    with contextlib.suppress(OSError), file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _MOST_TAIL_BYTES))
        text = stream.read().decode(errors="replace")
        return ["".join(filter(str.isprintable, line))[:300]
                for line in text.splitlines()[-LAST_LINES:]]  # fmt: skip
    return []
