"""A pool's manager for tests: speaks the Join stream, and as unkindly as a test wants."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from penstock_api.v1 import agent_pb2, pool_pb2, pool_pb2_grpc

GIB = 1 << 30


class Manager(pool_pb2_grpc.PoolServicer):
    """Serves service Pool on a unix socket. Tests say what it orders and read what was reported."""

    def __init__(self, socket, pool="pool-1", term=1):
        self.socket = socket
        self.pool, self.term, self.number = pool, term, 0
        self.parts = {}  # what is wanted, by application
        self.revision = 0
        self.reports = []  # all that came
        self.callers = []  # (method, RelayedCaller, request)
        self.joins = 0
        self.refusal = ""
        self.reads = True  # whether it reads reports
        self.updates = {}  # answers of Acquire, by the application's name
        self.withdrawn = []
        self.events = []  # of Watch
        self._streams = []
        self._changed = threading.Condition()
        self._server = None

    def start(self):
        self._server = grpc.server(ThreadPoolExecutor(64))
        pool_pb2_grpc.add_PoolServicer_to_server(self, self._server)
        self.socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        return self

    def stop(self):
        if self._server is not None:
            for stream in list(self._streams):
                stream.put(None)
            self._server.stop(0).wait()
            self._server = None

    # What it orders.

    def want(self, name, shares=None, *, send=True, **fields):
        """Wants an application on the node; the same revision until something changes."""
        before = self.parts.get(name)
        self.revision += 1
        part = pool_pb2.PartOrder(application=name, user="root", uid=0, mode="MODE_STRICT")
        if before is not None:
            part.CopyFrom(before)
        part.revision = self.revision
        if shares is not None:
            del part.shares[:]
            for uuid, memory, cores in shares:
                part.shares.add(device_uuid=uuid, memory_bytes=memory, cores_permille=cores)
        for field, value in fields.items():
            if field == "uid" and value is None:
                part.ClearField("uid")
            elif field == "claimed":
                part.claimed.CopyFrom(value)
            elif field == "labels":
                part.labels.update(value)
            else:
                setattr(part, field, value)
        self.parts[name] = part
        if send:
            self.send()
        return part

    def end(self, name, *, send=True):
        with self._changed:  # a list is numbered and sent as one, as a real manager does
            self.parts.pop(name, None)
            if send:
                self.send()

    def orders(self, **fields):
        self.number += 1
        return pool_pb2.NodeOrders(
            **{"pool": self.pool, "term": self.term, "number": self.number}
            | {"parts": list(self.parts.values())}
            | fields
        )

    def send(self, orders=None):
        """Sends the list, or another message, to all that have joined."""
        with self._changed:
            orders = orders or self.orders()
            for stream in list(self._streams):
                stream.put(orders)

    # What it hears.

    @property
    def report(self):
        return self.reports[-1] if self.reports else None

    def part(self, name):
        report = self.report
        found = [one for one in report.parts if one.application == name] if report else []
        return found[0] if found else None

    def state(self, name):
        part = self.part(name)
        return part.state if part is not None else None

    def wait(self, condition, timeout_s=20.0):
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), self.report
        return condition()

    def wait_for(self, name, state, timeout_s=20.0):
        """Waits until the newest orders are answered and the application has this state."""

        def has_come():
            report, part = self.report, self.part(name)
            if report is None or report.seen < self.number or not self._streams:
                return False
            return (part.state if part is not None else None) == state

        self.wait(has_come, timeout_s)
        return self.part(name)

    def wait_joined(self, timeout_s=20.0):
        joins = self.joins
        self.wait(lambda: self.report is not None and self._streams, timeout_s)
        return joins

    # The service.

    def Join(self, requests, context):  # noqa: N802
        orders = queue.Queue()
        context.add_callback(lambda: orders.put(None))
        self.joins += 1

        def read():
            first = True
            try:
                for report in requests:
                    with self._changed:
                        self.reports.append(report)
                        if first:
                            first = False
                            self._streams.append(orders)
                            if self.refusal:
                                orders.put(pool_pb2.NodeOrders(refused=True, reason=self.refusal))
                            else:
                                orders.put(self.orders())
                        self._changed.notify_all()
                    while not self.reads:
                        if not context.is_active():
                            return
                        threading.Event().wait(0.05)
            except grpc.RpcError:
                pass
            finally:
                orders.put(None)

        threading.Thread(target=read, daemon=True).start()
        try:
            while (message := orders.get()) is not None:
                yield message
        finally:
            with self._changed:
                if orders in self._streams:
                    self._streams.remove(orders)
                self._changed.notify_all()

    def _note(self, method, request, context):
        metadata = dict(context.invocation_metadata())
        raw = metadata.get("penstock-caller-bin", b"")
        self.callers.append((method, pool_pb2.RelayedCaller.FromString(raw), request))

    def Acquire(self, request, context):  # noqa: N802
        self._note("Acquire", request, context)
        ended = threading.Event()
        context.add_callback(ended.set)
        application = pool_pb2.Application(name=request.name, phase="waiting", node=request.node)
        yield pool_pb2.AcquireUpdate(application=application, reason="there is no room")
        if request.name.startswith("waits"):
            ended.wait(30)
            with self._changed:
                self.withdrawn.append(request.name)
                self._changed.notify_all()
            return
        caller = self.callers[-1][1]
        self.want(request.name, self.updates[request.name], user=caller.user, uid=caller.uid)
        self.wait_for(request.name, "running")
        application.phase = "running"
        yield pool_pb2.AcquireUpdate(application=application)

    def Release(self, request, context):  # noqa: N802
        self._note("Release", request, context)
        self.end(request.name)
        return pool_pb2.ReleaseResponse()

    def GetPool(self, request, context):  # noqa: N802
        self._note("GetPool", request, context)
        return pool_pb2.PoolState(pool=self.pool, term=self.term)

    def Why(self, request, context):  # noqa: N802
        self._note("Why", request, context)
        error = agent_pb2.Error(reason="no-such-tenant", what="no application", why="w", fix="f")
        context.set_trailing_metadata((("penstock-error-bin", error.SerializeToString()),))
        context.abort(grpc.StatusCode.NOT_FOUND, "no application")

    def Watch(self, request, context):  # noqa: N802
        self._note("Watch", request, context)
        yield pool_pb2.PoolEvent(event="joined")
        sent = 0
        while context.is_active():
            while sent < len(self.events):
                yield self.events[sent]
                sent += 1
            threading.Event().wait(0.05)
