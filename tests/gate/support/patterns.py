"""Programs for the gate's tests: each a way of using streams that a gate could break.

Run as ``python patterns.py NAME``; they end with 0 when the driver behaved as it must.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from typing import Any

from cuda.bindings import driver as cu

PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry penstock_spin(.param .u64 duration)
{
ret;
}
"""
MS = 1_000_000
INVALID_VALUE = 1


def ok(answer: tuple[Any, ...]) -> Any:
    """The results of a call that must succeed."""
    code, *results = answer
    assert int(code) == 0, answer
    return results[0] if len(results) == 1 else tuple(results)


class Device:
    """The primary context of device 0 and one kernel in it."""

    def __init__(self) -> None:
        ok(cu.cuInit(0))
        self.context = ok(cu.cuDevicePrimaryCtxRetain(0))
        ok(cu.cuCtxSetCurrent(self.context))
        self.load()

    def load(self) -> None:
        self.module = ok(cu.cuModuleLoadData(PTX))
        self.kernel = ok(cu.cuModuleGetFunction(self.module, b"penstock_spin"))

    def stream(self) -> Any:
        return ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def try_launch(self, stream: Any, duration_ns: int, blocks: int = 1) -> int:
        parameters = ((duration_ns,), (ctypes.c_uint64,))
        answer = cu.cuLaunchKernel(self.kernel, blocks, 1, 1, 32, 1, 1, 0, stream, parameters, 0)
        return int(answer[0])

    def launch(self, stream: Any, duration_ns: int) -> None:
        code = self.try_launch(stream, duration_ns)
        assert code == 0, code


def work_behind_a_wait_for_a_blocked_launch() -> None:
    """Stream A waits for a word that is written when stream B's many launches have gone."""
    device = Device()
    first, second = device.stream(), device.stream()
    word = ok(cu.cuMemAlloc(4))
    ok(cu.cuMemsetD32(word, 0, 1))
    for _ in range(20):
        device.launch(second, 2 * MS)
    ok(cu.cuStreamWaitValue32(first, word, 1, 0))
    for _ in range(20):
        device.launch(first, 2 * MS)
    for _ in range(20):
        device.launch(second, 2 * MS)
    ok(cu.cuStreamWriteValue32(second, word, 1, 0))
    ok(cu.cuStreamSynchronize(first))


def capture_beside_launches() -> None:
    """A capture in global mode while another thread launches through the gate."""
    device = Device()
    stop = threading.Event()
    failures: list[BaseException] = []

    def launch_all_the_time() -> None:
        try:
            ok(cu.cuCtxSetCurrent(device.context))
            stream = device.stream()
            while not stop.is_set():
                device.launch(stream, MS // 5)
        except BaseException as error:  # noqa: BLE001 - told to the main thread
            failures.append(error)

    thread = threading.Thread(target=launch_all_the_time)
    thread.start()
    stream = device.stream()
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    for _ in range(20):
        ok(cu.cuStreamBeginCapture(stream, mode))
        for _ in range(10):
            device.launch(stream, MS // 10)
            time.sleep(0.001)
        graph = ok(cu.cuStreamEndCapture(stream))
        _, nodes = ok(cu.cuGraphGetNodes(graph)), ok(cu.cuGraphGetNodes(graph, 64))
        assert nodes[1] == 10, nodes
        exec_graph = ok(cu.cuGraphInstantiate(graph, 0))
        ok(cu.cuGraphLaunch(exec_graph, stream))
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuGraphExecDestroy(exec_graph))
    stop.set()
    thread.join()
    assert not failures, failures


def refused_launches() -> None:
    """Launches that the driver refuses are not charged, and do not fill the gate."""
    device = Device()
    stream = device.stream()
    device.launch(stream, 2 * MS)
    ok(cu.cuStreamSynchronize(stream))
    began = time.monotonic()
    for _ in range(2000):
        assert device.try_launch(stream, 2 * MS, blocks=0) == INVALID_VALUE
    assert time.monotonic() - began < 2


def streams_that_come_and_go() -> None:
    """Streams are destroyed with work of theirs still measured; handles come back."""
    device = Device()
    for round_ in range(300):
        streams = [device.stream() for _ in range(4)]
        for stream in streams:
            device.launch(stream, 20_000)
            device.launch(stream, 20_000)
        if round_ % 3 == 0:
            ok(cu.cuCtxSynchronize())
        for stream in streams:
            ok(cu.cuStreamDestroy(stream))


def contexts_that_come_and_go() -> None:
    """Contexts are destroyed with timing windows open in them."""
    device = Device()
    for _ in range(10):
        parameters = cu.CUctxCreateParams()
        context = ok(cu.cuCtxCreate(parameters, 0, 0))
        device.load()
        stream = device.stream()
        for _ in range(10):
            device.launch(stream, 50_000)
            device.launch(cu.CUstream(0), 50_000)
        ok(cu.cuCtxDestroy(context))
        ok(cu.cuCtxSetCurrent(device.context))
    device.load()
    device.launch(cu.CUstream(0), 50_000)
    ok(cu.cuCtxSynchronize())


def modules_that_come_and_go() -> None:
    """A function handle may come back with another meaning."""
    device = Device()
    stream = device.stream()
    for round_ in range(20):
        for _ in range(5):
            device.launch(stream, (round_ % 2 + 1) * MS)
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuModuleUnload(device.module))
        device.load()


def child_of_a_fork() -> None:
    """The child cannot use the parent's driver; the parent goes on."""
    device = Device()
    stream = device.stream()
    for _ in range(20):
        device.launch(stream, MS // 5)
    child = os.fork()
    if child == 0:
        os._exit(0 if device.try_launch(stream, MS // 5) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for _ in range(20):
        device.launch(stream, MS // 5)
    ok(cu.cuStreamSynchronize(stream))


def memsets_without_end() -> None:
    """Memsets and copies inside the device, as many as the gate lets through."""
    device = Device()
    size = 24 << 30  # so large that the device's time, not the simulation's, is what counts
    memory = ok(cu.cuMemAlloc(2 * size))
    stream = device.stream()
    while True:
        ok(cu.cuMemsetD8Async(memory, 1, size, stream))
        ok(cu.cuMemcpyDtoDAsync(int(memory) + size, memory, size, stream))


def a_capture_left_open_without_end() -> None:
    """A capture that nobody ends, then work on another stream."""
    device = Device()
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    ok(cu.cuStreamBeginCapture(device.stream(), mode))
    stream = device.stream()
    while True:
        device.launch(stream, 5 * MS)
        ok(cu.cuStreamSynchronize(stream))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
