"""A real `penstock pool serve`, and calls to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import grpc

from penstock.node.rpc.status import error_of
from penstock_api.v1 import pool_pb2 as pb
from penstock_api.v1 import pool_pb2_grpc

OPTIONS = ("--lease=2s", "--node-timeout=3s", "--min-run=0s")


def wait_until(condition, timeout_s=20.0):
    """Waits for a true value of `condition` and returns it; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class ManagerProcess:
    """One manager. It may be killed and started again."""

    def __init__(self, folder, url, *options, limit=None):
        self.socket = folder / "pool.sock"
        self.url = url
        self.options = options
        self.process = None
        self.events = []
        self._limit = limit

    def start(self, event="started"):
        """Starts it; returns when it serves."""
        self.events = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "pool", "serve", f"--database={self.url}",
             f"--socket={self.socket}", *OPTIONS, *self.options],
            stderr=subprocess.PIPE, text=True, preexec_fn=self._limit,  # noqa: PLW1509
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        )  # fmt: skip
        reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        reader.start()
        wait_until(lambda: self.said(event) or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.events
        return self

    def said(self, event):
        return next((one for one in self.events if one.get("event") == event), None)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def _read(self, process):
        with process.stderr:
            for line in process.stderr:
                self.events.append(json.loads(line) if line.startswith("{") else {"line": line})

    # Calls

    def channel(self):
        return grpc.insecure_channel(
            f"unix:{self.socket}",
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200),
                     ("grpc.initial_reconnect_backoff_ms", 100)],
        )  # fmt: skip

    def call(self, method, request, timeout=15):
        with self.channel() as channel:
            return getattr(pool_pb2_grpc.PoolStub(channel), method)(request, timeout=timeout)

    def refused(self, method, request, timeout=15):
        """The error with which a call is refused."""
        try:
            self.call(method, request, timeout)
        except grpc.RpcError as error:
            return error_of(error, "the pool")
        raise AssertionError("it was not refused")

    def acquire(self, name, blocks, **fields):
        """Claims, and waits for the end of the stream; returns all updates."""
        with self.channel() as channel:
            stub = pool_pb2_grpc.PoolStub(channel)
            return list(stub.Acquire(pb.AcquireRequest(name=name, blocks=blocks, **fields)))

    def claim(self, name, blocks, **fields):
        """Begins a claim that goes on in the background."""
        return Claim(self, pb.AcquireRequest(name=name, blocks=blocks, **fields))

    def state(self):
        return self.call("GetPool", pb.GetPoolRequest())

    def phases(self):
        return {one.name: one.phase for one in self.state().applications}

    def phase(self, name):
        return self.phases().get(name, "")

    def release(self, name):
        self.call("Release", pb.ReleaseRequest(name=name))

    def watched(self, *names):
        with self.channel() as channel:
            stub = pool_pb2_grpc.PoolStub(channel)
            return [
                (one.event, one.application or one.node)
                for one in stub.Watch(pb.WatchRequest(names=names))
            ]


class Claim:
    """A call of Acquire in the background."""

    def __init__(self, manager, request, metadata=()):
        self.updates = []
        self.error = None
        self._channel = manager.channel()
        self._call = pool_pb2_grpc.PoolStub(self._channel).Acquire(request, metadata=metadata)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def phases(self):
        return [one.application.phase for one in self.updates]

    def _read(self):
        try:
            for one in self._call:
                self.updates.append(one)
        except grpc.RpcError as error:
            self.error = error_of(error, "the pool")

    @property
    def is_over(self):
        return not self._thread.is_alive()

    def cancel(self):
        self._call.cancel()
        self._thread.join(10)

    def ends(self, timeout_s=20):
        """Waits for its end; returns its last update, or its error."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()
        self._channel.close()
        return self.error or self.updates[-1]


def blocks_of(state):
    """The blocks that each application has; fails if one is given twice."""
    holders = {}
    for one in state.applications:
        for run in one.runs:
            for number in range(run.first, run.last + 1):
                assert number not in holders, (number, one.name, holders[number])
                holders[number] = one.name
    return holders
