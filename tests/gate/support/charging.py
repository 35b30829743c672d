"""Programs for the gate's tests: each keeps a device busy in a way that is hard to charge.

Run as ``python charging.py NAME``; they go on until they are killed.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
import time

from cuda.bindings import driver as cu
from patterns import MS, Device, ok

US = 1000
FILLS_THE_DEVICE = 100_000  # blocks


def costs_that_alternate_under_one_key() -> None:
    """20 us and 5 ms in turn, each waited for."""
    device = Device()
    stream = device.stream()
    while True:
        for duration_ns in (20 * US, 5 * MS):
            device.launch(stream, duration_ns)
            ok(cu.cuStreamSynchronize(stream))


def short_launches_behind_a_long_one_under_one_key() -> None:
    """50 ms once, 2 us ever after, none waited for."""
    device = Device()
    stream = device.stream()
    device.launch(stream, 50 * MS)
    while True:
        device.launch(stream, 2 * US)


def short_costs_that_alternate_under_one_key() -> None:
    """30 us and 300 us in turn, each waited for: too many to measure each."""
    device = Device()
    stream = device.stream()
    while True:
        for duration_ns in (30 * US, 300 * US):
            device.launch(stream, duration_ns)
            ok(cu.cuStreamSynchronize(stream))


def costs_that_alternate_in_the_background() -> None:
    """20 us and 2 ms under one key, never waited for."""
    device = Device()
    stream = device.stream()
    while True:
        for duration_ns in (20 * US, 20 * US, 20 * US, 2 * MS):
            device.launch(stream, duration_ns)


def legacy_launches_beside_an_open_capture() -> None:
    """20 ms in ever new shapes on the legacy stream while a non-blocking stream captures."""
    device = Device()
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    ok(cu.cuStreamBeginCapture(device.stream(), mode))
    while True:
        for blocks in range(1, 1000):
            device.try_launch(0, 20 * MS, blocks)


def legacy_launches_beside_another_threads_blocking_stream() -> None:
    """20 ms in ever new shapes where no event may be recorded: another thread's work would wait."""
    device = Device()

    def launch_a_little() -> None:
        ok(cu.cuCtxSetCurrent(device.context))
        stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_DEFAULT))
        while True:
            device.launch(stream, 10 * US)
            time.sleep(0.05)

    threading.Thread(target=launch_a_little, daemon=True).start()
    while True:
        for blocks in range(1, 1000):
            device.try_launch(0, 20 * MS, blocks)


def hand_over(device: Device, streams: tuple[cu.CUstream, cu.CUstream]) -> None:
    """200 launches of 20 us, each behind the one before on the other stream."""
    event = ok(cu.cuEventCreate(0))
    for number in range(200):
        here, there = streams[number % 2], streams[1 - number % 2]
        device.launch(here, 20 * US)
        ok(cu.cuEventRecord(event, here))
        ok(cu.cuStreamWaitEvent(there, event, 0))
    ok(cu.cuEventDestroy(event))


def launches_behind_waits_for_the_host() -> None:
    """200 hand-overs between two streams, more than are measured; then 1 ms behind a wait of 50."""
    device = Device()
    streams = device.stream(), device.stream()
    word = ok(cu.cuMemHostAlloc(8, cu.CU_MEMHOSTALLOC_DEVICEMAP))
    address = ok(cu.cuMemHostGetDevicePointer(word, 0))
    seen = ctypes.c_uint64.from_address(int(word))
    at_least = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
    for number in itertools.count(1):
        hand_over(device, streams)
        ok(cu.cuStreamWaitValue64(streams[0], address, number, at_least))
        assert device.try_launch(streams[0], 1 * MS, 7) == 0
        time.sleep(0.05)
        seen.value = number
        ok(cu.cuStreamSynchronize(streams[0]))


def waits_long_after_the_work() -> None:
    """200 hand-overs between two streams and 1 ms, over for 50 ms before the program waits."""
    device = Device()
    streams = device.stream(), device.stream()
    while True:
        hand_over(device, streams)
        assert device.try_launch(streams[0], 1 * MS, 7) == 0
        time.sleep(0.05)
        ok(cu.cuStreamSynchronize(streams[0]))


def long_launches_in_ever_new_shapes() -> None:
    """3 ms in a new shape, behind twenty launches of 20 us in a known one, none waited for."""
    device = Device()
    stream = device.stream()
    blocks = 1
    while True:
        for _ in range(20):
            device.launch(stream, 20 * US)
        blocks = blocks % FILLS_THE_DEVICE + 7
        assert device.try_launch(stream, 3 * MS, blocks) == 0


def long_launches_in_ever_new_shapes_waited_for() -> None:
    """As long_launches_in_ever_new_shapes, each waited for."""
    device = Device()
    stream = device.stream()
    blocks = 1
    while True:
        for _ in range(20):
            device.launch(stream, 20 * US)
            ok(cu.cuStreamSynchronize(stream))
        blocks = blocks % FILLS_THE_DEVICE + 7
        assert device.try_launch(stream, 3 * MS, blocks) == 0
        ok(cu.cuStreamSynchronize(stream))


def copies_whose_call_takes_long() -> None:
    """The simulated driver moves the contents while the call lasts, far longer than the copy."""
    device = Device()
    size = 1 << 30
    memory = ok(cu.cuMemAlloc(2 * size))
    stream = device.stream()
    while True:
        ok(cu.cuMemcpyDtoDAsync(int(memory) + size, memory, size, stream))
        device.launch(stream, 2 * MS)


def wide_kernels_on_eight_streams() -> None:
    """Each fills the device, so that they run one after the other."""
    device = Device()
    streams = [device.stream() for _ in range(8)]
    while True:
        for stream in streams:
            assert device.try_launch(stream, 200 * US, FILLS_THE_DEVICE) == 0


def wide_kernels_waited_for_in_rounds() -> None:
    """As wide_kernels_on_eight_streams, with a wait for the context after each round."""
    device = Device()
    streams = [device.stream() for _ in range(4)]
    while True:
        for stream in streams:
            assert device.try_launch(stream, 500 * US, FILLS_THE_DEVICE) == 0
        ok(cu.cuCtxSynchronize())


def kernels_waited_for_by_event() -> None:
    """The program waits for an event, so the gate sees no wait for the stream."""
    device = Device()
    stream, event = device.stream(), ok(cu.cuEventCreate(0))
    while True:
        for _ in range(2):
            device.launch(stream, 200 * US)
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuEventSynchronize(event))


def kernels_waited_for_by_query() -> None:
    """The program polls the stream, so the gate sees no wait."""
    device = Device()
    stream = device.stream()
    while True:
        device.launch(stream, 300 * US)
        while int(cu.cuStreamQuery(stream)[0]):
            pass


def kernels_between_copies() -> None:
    """A copy in, a kernel, a copy out that is waited for."""
    device = Device()
    memory, host = ok(cu.cuMemAlloc(1 << 16)), bytearray(1 << 16)
    stream = device.stream()
    while True:
        ok(cu.cuMemcpyHtoDAsync(memory, host, len(host), stream))
        device.launch(stream, 300 * US)
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuMemcpyDtoH(host, memory, len(host)))


def two_kinds_on_two_streams() -> None:
    """A long kernel beside short ones that fit in beside it."""
    device = Device()
    first, second = device.stream(), device.stream()
    while True:
        device.launch(first, 3 * MS)
        for _ in range(10):
            device.launch(second, 100 * US)


def streams_destroyed_behind_their_work() -> None:
    """A stream a kernel, destroyed at once; an event says when the kernel is over."""
    device = Device()
    event = ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    while True:
        for duration_ns in (100 * US, 100 * US, 10 * MS):
            stream = device.stream()
            device.launch(stream, duration_ns)
            ok(cu.cuEventRecord(event, stream))
            ok(cu.cuStreamDestroy(stream))
            ok(cu.cuEventSynchronize(event))


def batches_that_end_long(wait: str) -> None:
    """Three short launches and a long one under one key; `wait`: how the host learns of the end."""
    device = Device()
    stream, event = device.stream(), ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    while True:
        for duration_ns in (100 * US, 100 * US, 100 * US, 2 * MS):
            device.launch(stream, duration_ns)
        if wait == "event":
            ok(cu.cuEventRecord(event, stream))
            ok(cu.cuEventSynchronize(event))
        elif wait == "query":
            while int(cu.cuStreamQuery(stream)[0]):
                pass
        else:
            time.sleep(0.0025)


def batches_that_end_long_waited_for_by_event() -> None:
    """The program waits for an event, as most frameworks do."""
    batches_that_end_long("event")


def batches_that_end_long_waited_for_by_query() -> None:
    """The program polls the stream: no wait that the gate sees."""
    batches_that_end_long("query")


def batches_that_end_long_and_nobody_waits() -> None:
    """The program never waits."""
    batches_that_end_long("never")


def threads_that_end_behind_their_launch() -> None:
    """A thread a launch, on its own default stream; the next thread has the address of the last."""
    device = Device()

    def launch(duration_ns: int) -> None:
        ok(cu.cuCtxSetCurrent(device.context))
        device.launch(cu.CUstream(cu.CU_STREAM_PER_THREAD), duration_ns)

    while True:
        for duration_ns in (100 * US, 100 * US, 10 * MS):
            thread = threading.Thread(target=launch, args=(duration_ns,))
            thread.start()
            thread.join()


def contexts_destroyed_behind_their_work() -> None:
    """A context a job, as some servers do: the driver waits for what runs when it destroys one."""
    device = Device()
    while True:
        context = ok(cu.cuCtxCreate(None, 0, 0))
        device.load()
        stream = device.stream()
        for _ in range(3):
            device.launch(stream, 20 * MS)
        ok(cu.cuCtxDestroy(context))
        ok(cu.cuCtxSetCurrent(device.context))


def rare_long_launches_that_nobody_waits_for() -> None:
    """100 ms under a key that takes 20 us two hundred times; the host works meanwhile."""
    device = Device()
    stream = device.stream()
    while True:
        for _ in range(200):
            device.launch(stream, 20 * US)
            ok(cu.cuStreamSynchronize(stream))
        device.launch(stream, 100 * MS)
        time.sleep(0.11)


def rare_long_launches_right_behind_a_wait() -> None:
    """100 ms at once behind a wait for 2 us, under a key that mostly takes 100 us."""
    device = Device()
    stream = device.stream()
    cuda = ctypes.CDLL("libcuda.so.1")
    handle, kernel = ctypes.c_void_p(int(stream)), ctypes.c_void_p(int(device.kernel))
    shape = [ctypes.c_uint(n) for n in (1, 1, 1, 32, 1, 1, 0)]
    durations = [ctypes.c_uint64(ns) for ns in (100 * US, 2 * US, 100 * MS)]
    short, shorter, long = (
        functools.partial(
            cuda.cuLaunchKernel, kernel, *shape, handle,
            ctypes.byref(ctypes.c_void_p(ctypes.addressof(duration))), None,
        )
        for duration in durations
    )  # fmt: skip
    wait = functools.partial(cuda.cuStreamSynchronize, handle)
    while True:
        for _ in range(200):
            assert short() == wait() == 0
        assert shorter() == wait() == long() == 0
        time.sleep(0.11)


def a_long_launch_now_and_then_under_a_short_key() -> None:
    """20 us each for 0.3 s, then 150 ms once; each waited for, and most not measured."""
    device = Device()
    stream = device.stream()
    while True:
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            device.launch(stream, 20 * US)
            ok(cu.cuStreamSynchronize(stream))
        device.launch(stream, 150 * MS)
        ok(cu.cuStreamSynchronize(stream))


def launches_that_grow() -> None:
    """20 us each for half a second, then 3 ms ever after under the same key; each waited for."""
    device = Device()
    stream = device.stream()
    end = time.monotonic() + 0.5
    while True:
        device.launch(stream, 20 * US if time.monotonic() < end else 3 * MS)
        ok(cu.cuStreamSynchronize(stream))


def launches_of_200_ms() -> None:
    """Kernels longer than the gate's patience; a line on stdin starts them."""
    device = Device()
    stream = device.stream()
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        device.launch(stream, 200 * MS)


def processes_that_end_behind_their_work() -> None:
    """One process after the other launches once, looks away until the kernel is over, and ends."""
    while True:
        child = os.fork()
        if not child:
            device = Device()
            device.launch(device.stream(), 50 * MS)
            time.sleep(0.055)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0


def a_kernel_that_runs_for_seconds() -> None:
    """One launch, which the program waits for."""
    device = Device()
    stream = device.stream()
    device.launch(stream, 20 * US)
    ok(cu.cuStreamSynchronize(stream))
    device.launch(stream, 3000 * MS)
    ok(cu.cuStreamSynchronize(stream))
    threading.Event().wait()


def uneven_launches_waited_for_after_a_pause() -> None:
    """2 and 8 ms in turn under one key, over for some time before the program waits."""
    device = Device()
    stream = device.stream()
    while True:
        for duration_ns in (2 * MS, 8 * MS):
            device.launch(stream, duration_ns)
            time.sleep(0.015)
            ok(cu.cuStreamSynchronize(stream))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
