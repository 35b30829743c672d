"""Writer thread of the meter, which keeps a slow disk from blocking the agent's loop."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.metering.retention import Retention, roll_up
from penstock.node.metering.store import (
    FILE,
    Store,
    StoreDamagedError,
    WriterLock,
    set_aside,
    told_apart,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.node.metering.account import Account
    from penstock.node.metering.batch import Batch, Key

ROLL_UP_PERIOD_S = 600.0
RETRY_S = 1.0
WAITS_S = 0.05  # how long a caller waits for the disk; rarely again after a time-out
ASK_AGAIN_S = 1.0
MOST_TOLD = 65536  # accounts looked up but not yet collected by a caller


class Writer:
    """Stores one batch at a time, retrying until it is stored.

    Only the thread accesses the file, so the disk never blocks a caller.
    """

    def __init__(self, directory: Path, retention: Retention) -> None:
        """Opens the file. If it cannot be opened now, that is retried and is not an error.

        Raises:
            PenstockError: the directory is not writable, or a newer release wrote the file.
        """
        self._path = directory / FILE
        self._retention = retention
        self._lock = WriterLock(directory)
        self._store: Store | None = None
        self._rolled_up_s = 0.0
        self._batch: Batch | None = None
        self._wanted: dict[Key, None] = {}
        self._patient_s = 0.0  # time.monotonic() after which callers wait again
        self._told: dict[Key, Account | None] = {}
        self._ending = False
        self._changed = threading.Condition()
        self.failures = 0
        self.problem: str | None = None
        self.damaged: list[Path] = []  # damaged files that were set aside
        try:
            self._open()
        except sqlite3.Error as error:
            self._failed(error)
        except PenstockError:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._work, name="meter-writer", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> bool:
        """Accepts a batch; returns False while the previous batch is not stored yet."""
        with self._changed:
            if self._batch is not None:
                return False
            self._batch = batch
            self._changed.notify_all()
            return True

    @property
    def idle(self) -> bool:
        """Whether every submitted batch is stored and every look-up is done."""
        return self._batch is None and not self._wanted

    def wait(self, timeout_s: float) -> bool:
        """Waits until `idle`; returns False on a time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: self.idle, timeout_s)

    def account(self, key: Key) -> tuple[bool, Account | None]:
        """Whether the stored account of a tenant on a device is known, and the account.

        The thread looks up the account, usually at once. If it is not known yet, call again. Each
        result is returned only once.
        """
        with self._changed:
            if key not in self._told and key not in self._wanted:
                self._wanted[key] = None
                self._changed.notify_all()
            waits_s = WAITS_S if time.monotonic() >= self._patient_s else 0.0
            if not self._changed.wait_for(lambda: key in self._told, waits_s) and waits_s:
                self._patient_s = time.monotonic() + ASK_AGAIN_S
            return (True, self._told.pop(key)) if key in self._told else (False, None)

    def close(self, timeout_s: float) -> bool:
        """Ends the thread; returns False if something could not be stored in time."""
        done = self.wait(timeout_s)
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            if self._store is not None:
                self._store.close()
            self._lock.release()
        return done

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._ending:
                    return
                batch, wanted = self._batch, list(self._wanted)
            told = self._try(batch, wanted)
            if told is not None:
                with self._changed:
                    if batch is not None:
                        self._batch = None
                    self._tell(told)
                    self._changed.notify_all()
                self._tidy()
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._ending, RETRY_S)

    def _has_work(self) -> bool:
        return self._ending or self._batch is not None or self._store is None or bool(self._wanted)

    def _try(self, batch: Batch | None, wanted: Iterable[Key]) -> dict[Key, Account | None] | None:
        """Opens the store if needed, stores `batch` if there is one, and reads `wanted`.

        Returns None on failure.
        """
        try:
            store = self._open()
            if batch is not None:
                store.commit(batch)
            incarnations = {incarnation for incarnation, _ in wanted}
            known = {one: store.accounts(one) for one in incarnations}
        except (sqlite3.Error, StoreDamagedError, PenstockError) as error:
            self._failed(error)
            return None
        self.problem = None
        return {(incarnation, uuid): known[incarnation].get(uuid) for incarnation, uuid in wanted}

    def _tell(self, told: dict[Key, Account | None]) -> None:
        for key, account in told.items():
            self._wanted.pop(key, None)
            self._told[key] = account
        while len(self._told) > MOST_TOLD:  # no caller has collected the oldest ones
            del self._told[next(iter(self._told))]

    def _open(self) -> Store:
        if self._store is None:
            try:
                self._store = Store(self._path)
            except StoreDamagedError:
                self._set_aside()
                self._store = Store(self._path)
        return self._store

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.problem = f"{self._path}: {error}"
        error = told_apart(error)
        if self._store is not None:
            self._store.close()  # when reopened, it shows what was stored after all
            self._store = None
        if isinstance(error, StoreDamagedError):
            self._set_aside()

    def _set_aside(self) -> None:
        with contextlib.suppress(OSError):  # a failed rename is retried
            self.damaged.append(set_aside(self._path))

    def _tidy(self) -> None:
        if self._store is None or time.monotonic() - self._rolled_up_s < ROLL_UP_PERIOD_S:
            return
        self._rolled_up_s = time.monotonic()
        try:
            roll_up(self._store, self._retention)
        except sqlite3.Error as error:
            self._failed(error)
