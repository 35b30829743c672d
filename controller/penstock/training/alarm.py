"""Alarm: tells a web address what goes wrong with a run, as it happens."""

from __future__ import annotations

import json
import threading
import urllib.request
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

if TYPE_CHECKING:
    from penstock.training.run import Run

ALARMS = {"card-lost", "restarting", "not-started", "failed"}  # events that the webhook gets
LOOKS_S, ANSWERS_WITHIN_S = 0.5, 5.0


class Alarm:
    """Sends each event of a run that is an alarm, once, as JSON: run, time, event, text.

    An address that does not answer delays nothing but later alarms; it is noted as an event.
    """

    def __init__(self, run: Run, address: str) -> None:
        """Begins with the events that come from now on."""
        self._run = run
        self._address = address
        self._told = len(run.events())
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="alarm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends what is left."""
        self._is_over.set()
        self._thread.join(2 * ANSWERS_WITHIN_S)

    def _follow(self) -> None:
        while not self._is_over.wait(LOOKS_S):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        events = self._run.events()
        new, self._told = events[self._told :], len(events)
        for event in new:
            if event.event in ALARMS:
                self._send({"run": str(self._run), **asdict(event)})

    def _send(self, said: dict[str, Any]) -> None:
        request = urllib.request.Request(  # noqa: S310 - the job's document was checked
            self._address, json.dumps(said).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN_S):  # noqa: S310
                pass
        except (URLError, OSError, ValueError) as error:
            text = f"{said['event']} could not be told to {self._address}: {error}"
            self._run.add_event("alarm-not-sent", text)
