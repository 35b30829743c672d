"""Holders of pool applications on this node: the processes that claimed blocks.

An application lives as long as the process that claimed it, or any process of its tenant. The
holders are kept in a file, so that an agent that is started again knows them.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

from penstock.node.agent.peer import Watched
from penstock.node.enforcement.process import Process
from penstock.node.tenants.json_files import read_record

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.node.tenants.state import State

FILE = "pool-holders.json"
MOST_OF_AN_APPLICATION = 8  # the newest; a program that was started again claims again
MOST_OF_A_PERSON, MOST = 256, 8192  # applications with holders
Held = tuple[str, list[Watched]]  # person, and processes, oldest first


class PoolHolders:
    """The holders by application. Thread-safe."""

    def __init__(self, state: State) -> None:
        self._file = state.directory / FILE
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}

    def load(self) -> None:
        """Reads the holders that an earlier agent knew; a damaged file counts as empty."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            found = json.loads(read_record(self._file))
            with self._lock:
                for application, entry in found.items():
                    processes = [Process(int(pid), int(ticks)) for pid, ticks in entry["processes"]]
                    watched = [one for one in map(Watched.again, processes) if one is not None]
                    if watched:
                        self._held[str(application)] = (str(entry["person"]), watched)

    def add(self, application: str, person: str, process: Watched, needed: Collection[str]) -> None:
        """Remembers a holder. `needed`: applications that are on the node, never forgotten."""
        with self._lock:
            _, before = self._held.pop(application, (person, []))
            known = [one for one in before if one.process != process.process]
            watched = [*known, process][-MOST_OF_AN_APPLICATION:]
            self._held[application] = (person, watched)
            self._forget_beyond_limits(person, needed)
            self._save()

    def of(self, application: str) -> Held | None:
        """The holders as they are known now, for `forget`."""
        with self._lock:
            return self._held.get(application)

    def forget(self, application: str, held: Held | None) -> None:
        """Forgets the holders of a claim that was withdrawn, refused or released.

        `held`: as they were known then. If somebody has claimed under this name since, nothing is
        forgotten.
        """
        with self._lock:
            if held is not None and self._held.get(application) is held:
                del self._held[application]
                self._save()

    def is_held(self, application: str) -> bool | None:
        """Whether a holder is alive; None if no holder is known."""
        with self._lock:
            found = self._held.get(application)
            if found is None:
                return None
            return any(not one.has_ended() for one in found[1])

    def living(self) -> list[str]:
        """The applications with a living holder."""
        with self._lock:
            return [
                application
                for application, (_, watched) in self._held.items()
                if any(not one.has_ended() for one in watched)
            ]

    def prune(self, needed: Collection[str]) -> None:
        """Forgets the ended holders of applications that are not on the node (`needed`)."""
        with self._lock:
            over = [
                application
                for application, (_, watched) in self._held.items()
                if application not in needed and all(one.has_ended() for one in watched)
            ]
            for application in over:
                del self._held[application]
            if over:
                self._save()

    def _forget_beyond_limits(self, person: str, needed: Collection[str]) -> None:
        own = [a for a, (whose, _) in self._held.items() if whose == person and a not in needed]
        for application in own[: max(0, len(own) - MOST_OF_A_PERSON)]:
            del self._held[application]
        if len(self._held) > MOST:  # the oldest of the user with the most
            whose = Counter(whose for whose, _ in self._held.values()).most_common(1)[0][0]
            oldest = next(a for a, (one, _) in self._held.items() if one == whose)
            del self._held[oldest]

    def _save(self) -> None:
        """Replaces the file; on a full disk only an agent started again misses the newest."""
        document = {
            application: {
                "person": person,
                "processes": [[one.process.pid, one.process.start_ticks] for one in watched],
            }
            for application, (person, watched) in self._held.items()
        }
        aside = self._file.with_name(f".{FILE}.{os.getpid()}")
        try:
            aside.write_text(json.dumps(document), encoding="utf-8")
            aside.replace(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
