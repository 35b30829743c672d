"""The lease of an application's holder: a thread that says again and again that it is alive."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.node.rpc.pool_client import PoolClient

LEAST_PERIOD_S = 0.05
TIMES_A_LEASE = 3  # so that two lost messages do not end the application


class PoolLease:
    """Sends KeepAlive for an application until it is closed or the application is gone."""

    def __init__(self, open_client: Callable[[], PoolClient], name: str, lease_s: float) -> None:
        self.name = name
        self.is_lost = False  # the pool does not know the application any more
        self.problem: PenstockError | None = None  # why the last message did not arrive
        self._open = open_client
        self._period_s = max(LEAST_PERIOD_S, lease_s / TIMES_A_LEASE)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. The application loses its blocks when its lease ends."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5)

    def _run(self) -> None:
        with self._open() as client:
            while not self._closing.is_set():
                try:
                    self.is_lost = self.name in client.keep_alive([self.name])
                    self.problem = None
                except PenstockError as error:  # the next message may arrive
                    self.problem = error
                if self.is_lost:
                    return
                self._closing.wait(self._period_s)
