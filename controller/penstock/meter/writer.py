"""The thread that stores batches: a slow or stuck disk must not hold up the agent's loop."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

from penstock.meter.retention import Retention, roll_up
from penstock.meter.store import FILE, Store, StoreDamagedError, WriterLock, set_aside, told_apart
from penstock.model import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.meter.account import Account
    from penstock.meter.batch import Batch

ROLL_UP_PERIOD_S = 600.0
RETRY_S = 1.0
ASK_AGAIN_S = 0.2  # the store, after it could not tell


class Writer:
    """Stores one batch at a time, and tries again until it is stored.

    Only the thread writes; `accounts` reads by a connection of its own.
    """

    def __init__(self, directory: Path, retention: Retention) -> None:
        """Raises `PenstockError` where the directory is no place to write, or a newer one wrote it.

        A file that cannot be opened now is not an error: it is tried again.
        """
        self._path = directory / FILE
        self._retention = retention
        self._lock = WriterLock(directory)
        self._store: Store | None = None
        self._reader: Store | None = None
        self._ask_again_s = 0.0  # of time.monotonic()
        self._found_damaged: StoreDamagedError | None = None  # by the reader
        # Held while the reader works and while a file is set aside: a connection to the old file
        # that is closed later would take the new one's log with it.
        self._files = threading.Lock()
        self._rolled_up_s = 0.0
        self._batch: Batch | None = None
        self._ending = False
        self._changed = threading.Condition()
        self.failures = 0
        self.problem: str | None = None
        self.damaged: list[Path] = []  # files that were set aside
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
        """Takes a batch over; False while the one before is not stored yet."""
        with self._changed:
            if self._batch is not None:
                return False
            self._batch = batch
            self._changed.notify_all()
            return True

    @property
    def idle(self) -> bool:
        """Whether all that was submitted is stored."""
        return self._batch is None

    def wait(self, timeout_s: float) -> bool:
        """Waits until all that was submitted is stored; False: it is not yet."""
        with self._changed:
            return self._changed.wait_for(lambda: self._batch is None, timeout_s)

    def accounts(self, incarnation: str) -> dict[str, Account] | None:
        """What the store knows of a tenant; None: it cannot be asked now."""
        if time.monotonic() < self._ask_again_s or not self._files.acquire(blocking=False):
            return None
        try:
            if self._store is None:
                return None  # the thread opens it, and says why it cannot
            if self._reader is None:
                self._reader = Store(self._path)
            return self._reader.accounts(incarnation)
        except (sqlite3.Error, StoreDamagedError, PenstockError) as error:
            self._ask_again_s = time.monotonic() + ASK_AGAIN_S
            self._drop_reader()
            problem = told_apart(error)
            if isinstance(problem, StoreDamagedError):
                with self._changed:
                    self._found_damaged = problem
                    self._changed.notify_all()
            return None
        finally:
            self._files.release()

    def close(self, timeout_s: float) -> bool:
        """Ends the thread; False: something could not be stored in time."""
        done = self.wait(timeout_s)
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._files:
            self._drop_reader()
        if not self._thread.is_alive():
            if self._store is not None:
                self._store.close()
            self._lock.release()
        return done

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._ending:
                    return
                batch, damaged, self._found_damaged = self._batch, self._found_damaged, None
            if damaged is not None:
                self._failed(damaged)
            if self._try(batch):
                with self._changed:
                    if batch is not None:
                        self._batch = None
                    self._changed.notify_all()
                self._tidy()
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._ending, RETRY_S)

    def _has_work(self) -> bool:
        return (
            self._ending
            or self._batch is not None
            or self._store is None
            or self._found_damaged is not None
        )

    def _try(self, batch: Batch | None) -> bool:
        """Opens the store, where it is not, and stores `batch`, where there is one."""
        try:
            store = self._open()
            if batch is not None:
                store.commit(batch)
        except (sqlite3.Error, StoreDamagedError, PenstockError) as error:
            self._failed(error)
            return False
        self.problem = None
        return True

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
            self._store.close()  # opened anew, it shows what was stored after all
            self._store = None
        if isinstance(error, StoreDamagedError):
            self._set_aside()

    def _set_aside(self) -> None:
        with self._files:
            self._drop_reader()
            self._found_damaged = None
            with contextlib.suppress(OSError):  # where nothing can be renamed, it is tried again
                self.damaged.append(set_aside(self._path))

    def _tidy(self) -> None:
        if self._store is None or time.monotonic() - self._rolled_up_s < ROLL_UP_PERIOD_S:
            return
        self._rolled_up_s = time.monotonic()
        try:
            roll_up(self._store, self._retention)
        except sqlite3.Error as error:
            self._failed(error)
