"""A node of a pool without an agent: speaks Join, as slowly and wrongly as a test wants."""

from __future__ import annotations

import queue
import threading
import time

import grpc

from penstock_api.v1 import pool_pb2 as pb
from penstock_api.v1 import pool_pb2_grpc

GIB = 1 << 30


def card(uuid, tflops=20, kind="gpu", memory=16, frees_memory=True):
    return pb.PoolCard(uuid=uuid, kind=kind, tflops=tflops, memory_bytes=memory * GIB,
                       model="model", frees_memory=frees_memory)  # fmt: skip


class FakeNode:
    """Carries out orders in its own thread, and keeps what it has done over connections."""

    def __init__(self, manager, name="n0", cards=None, channel=None):
        self.manager = manager
        self.name = name
        self.cards = [card(f"{name}-c0")] if cards is None else cards
        self.pool, self.term = "", 0
        self.parts = {}  # application: PartReport
        self.orders = []  # all that came
        self.refused = ""
        self.alive = []
        self.says = {}  # (application, "running" or "suspended"): the state to report instead
        self.obeys = True  # whether it carries orders out
        self.speaks = True
        self.connects = True
        self.changes_report = lambda report: report
        self._seen = 0
        self._wakes = queue.Queue()
        self._channel = channel or manager.channel
        self._call = None
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self):
        self._ends = True
        self.break_off()
        self._thread.join(10)

    def break_off(self):
        """Breaks the connection."""
        call = self._call
        if call is not None:
            call.cancel()

    def wake(self):
        """Reports at once."""
        self._wakes.put("report")

    def newest(self, application):
        """The newest order about an application, None if it is to be ended."""
        parts = self.orders[-1].parts if self.orders else ()
        return next((one for one in parts if one.application == application), None)

    def report(self):
        report = pb.NodeReport(node=self.name, pool=self.pool, term=self.term, cards=self.cards,
                               parts=list(self.parts.values()), seen=self._seen,
                               alive=self.alive)  # fmt: skip
        return self.changes_report(report)

    def _run(self):
        while not self._ends:
            if not self.connects:
                time.sleep(0.02)
                continue
            with self._channel() as channel:
                over = threading.Event()
                self._call = pool_pb2_grpc.PoolStub(channel).Join(self._reports(over))
                try:
                    for orders in self._call:
                        self._take(orders)
                except grpc.RpcError as error:
                    self.refused = self.refused or str(error.details())
                finally:
                    over.set()
                    self.wake()
            time.sleep(0.05)

    def _reports(self, over):
        while not over.is_set():
            if self.speaks:
                yield self.report()
            try:
                self._wakes.get(timeout=0.3)
            except queue.Empty:
                continue

    def _take(self, orders):
        self.orders.append(orders)
        if orders.refused:
            self.refused = orders.reason
            return
        if orders.term < self.term:
            return
        self.refused = ""
        self.pool, self.term = orders.pool, orders.term
        if not self.obeys:
            return
        self._carry_out(orders)
        self.wake()

    def _carry_out(self, orders):
        self._seen = orders.number
        parts = {}
        for part in orders.parts:
            state = "suspended" if part.suspended else "running"
            said = self.says.get((part.application, state), state)
            parts[part.application] = pb.PartReport(
                application=part.application, revision=part.revision, state=said,
                reason="as the test says" if said == "failed" else "",
            )  # fmt: skip
        self.parts = parts

    def obey(self):
        """Carries out the newest orders, and all further ones."""
        self.obeys = True
        if self.orders:
            self._carry_out(self.orders[-1])
        self.wake()
