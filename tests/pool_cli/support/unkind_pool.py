"""A server of service Pool for tests of its clients: it answers as a test says, and goes away."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from penstock.node.rpc.status import CODES
from penstock_api.v1 import agent_pb2, pool_pb2, pool_pb2_grpc


class UnkindPool(pool_pb2_grpc.PoolServicer):
    """Serves at a socket or at an address with credentials. `scripts` answer successive claims."""

    def __init__(self, address, credentials=None):
        self.address, self.credentials = str(address), credentials
        self.state = pool_pb2.PoolState(pool="pool-1", term=3, leader="manager", precision="bf16")
        self.scripts = []  # of Acquire: functions of (pool, request, context); the last one stays
        self.calls = []  # (method, request)
        self.withdrawn = []  # names of claims whose caller went away
        self.kept_alive = []
        self.unknown = []
        self.plan, self.moves, self.events, self.left_out = [], [], [], []
        self.is_partial = False
        self.answer = None  # of Why
        self.refusals = {}  # by method: arguments of `refuse`
        self.delay_s = 0.0
        self.changed = threading.Condition()
        self._server = None

    def start(self):
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        pool_pb2_grpc.add_PoolServicer_to_server(self, self._server)
        if self.credentials is None:
            self._server.add_insecure_port(f"unix:{self.address}")
        else:
            port = self._server.add_secure_port(self.address, self.credentials)
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        self._server.start()
        return self

    def stop(self):
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def called(self, method):
        return [request for name, request in list(self.calls) if name == method]

    def wait(self, condition, timeout_s=30.0):
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.calls
            time.sleep(0.01)

    def note(self, method, request, context):
        self.calls.append((method, request))
        if self.delay_s:
            time.sleep(self.delay_s)
        if method in self.refusals:
            refuse(context, *self.refusals[method])

    # The service.

    def Acquire(self, request, context):  # noqa: N802
        self.note("Acquire", request, context)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        yield from script(self, request, context)

    def Release(self, request, context):  # noqa: N802
        self.note("Release", request, context)
        return pool_pb2.ReleaseResponse()

    def ResizeApplication(self, request, context):  # noqa: N802
        self.note("ResizeApplication", request, context)
        application = granted(request.name, request.blocks)
        return pool_pb2.ResizeApplicationResponse(application=application)

    def KeepAlive(self, request, context):  # noqa: N802
        self.note("KeepAlive", request, context)
        self.kept_alive.extend(request.names)
        return pool_pb2.KeepAliveResponse(unknown=[n for n in request.names if n in self.unknown])

    def Compact(self, request, context):  # noqa: N802
        self.note("Compact", request, context)
        yield pool_pb2.CompactUpdate(
            plan=self.plan, left_out=self.left_out, is_partial=self.is_partial
        )
        for move in [] if request.dry_run else self.moves:
            yield pool_pb2.CompactUpdate(done=move)

    def GetPool(self, request, context):  # noqa: N802
        self.note("GetPool", request, context)
        return self.state

    def Why(self, request, context):  # noqa: N802
        self.note("Why", request, context)
        return self.answer

    def Watch(self, request, context):  # noqa: N802
        self.note("Watch", request, context)
        sent = 0
        while context.is_active():
            while sent < len(self.events):
                yield self.events[sent]
                sent += 1
            if not request.follow:
                return
            time.sleep(0.02)

    def Drain(self, request, context):  # noqa: N802
        self.note("Drain", request, context)
        node = pool_pb2.PoolNode(name=request.node, state="draining", first=1, last=10)
        node.free_blocks = 4
        if request.stop:
            node.state = "there"
        return pool_pb2.DrainResponse(node=node)


# Scripts of Acquire.


def grant(pool, request, context):
    """Grants at once."""
    yield update(granted(request.name or "app-1", request.blocks))


def wait_then_grant(event):
    """Waits for the event, then grants."""

    def script(pool, request, context):
        name = request.name or "app-1"
        has_ended = threading.Event()

        def note_end():
            if not has_ended.is_set():
                pool.withdrawn.append(name)

        context.add_callback(note_end)
        yield waiting(name, request.blocks)
        while not event.wait(0.02):
            if not context.is_active():
                return
        has_ended.set()
        yield update(granted(name, request.blocks))

    return script


def refuse_claim(*sentences):
    def script(pool, request, context):
        refuse(context, *sentences)
        yield

    return script


def refuse(context, reason, what, why, fix):
    message = agent_pb2.Error(reason=reason, what=what, why=why, fix=fix)
    context.set_trailing_metadata((("penstock-error-bin", message.SerializeToString()),))
    context.abort(CODES[reason], what)


def granted(name, blocks, first=1, **fields):
    one = pool_pb2.Application(
        name=name, phase="running", asked_blocks=blocks, blocks=blocks, owner="root", **fields
    )
    one.runs.add(first=first, last=first + blocks - 1)
    one.parts.add(
        node="node-0",
        device_uuid="GPU-1",
        model="NVIDIA H200",
        first=first,
        last=first + blocks - 1,
        memory_bytes=blocks << 30,
        cores_permille=10 * blocks,
    )
    return one


def waiting(name, blocks, place=1, reason="no 50 blocks are free: 18 are"):
    one = pool_pb2.Application(name=name, phase="waiting", asked_blocks=blocks, place=place)
    return pool_pb2.AcquireUpdate(application=one, reason=reason)


def update(application, **fields):
    return pool_pb2.AcquireUpdate(application=application, **fields)


def pool_of(nodes, cards, blocks, held=()):
    """A state of nodes with `cards` cards of `blocks` blocks; `held`: (name, first, last)."""
    state = pool_pb2.PoolState(pool="pool-1", term=3, leader="manager", precision="bf16")
    number = 1
    for at in range(nodes):
        node = state.nodes.add(name=f"node-{at}", state="there", first=number)
        for index in range(cards):
            node.cards.add(
                uuid=f"GPU-{at}-{index}", index=index, kind="gpu", model="H200", tflops=blocks,
                memory_bytes=140 << 30, first=number, last=number + blocks - 1,
                free_blocks=blocks,
            )  # fmt: skip
            number += blocks
        node.last, node.free_blocks = number - 1, cards * blocks
    state.blocks = state.free_blocks = number - 1
    for name, first, last in held:
        one = state.applications.add(name=name, phase="running", blocks=last - first + 1)
        one.runs.add(first=first, last=last)
        state.free_blocks -= last - first + 1
        for node in state.nodes:
            for card in node.cards:
                common = min(last, card.last) - max(first, card.first) + 1
                if common > 0:
                    card.free_blocks -= common
                    node.free_blocks -= common
                    one.parts.add(node=node.name, device_uuid=card.uuid, first=first, last=last)
    return state
