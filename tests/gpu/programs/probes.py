"""Probes of the gate's assumptions about a driver and its device, one probe a run.

python probes.py NAME      prints what was found as JSON
"""

import ctypes
import itertools
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time

import driver
from driver import U64, call, code, has, leave, load, new_event, new_stream
from kernels import EARLY, KERNELS
from say import say

CAPTURE_GLOBAL, CAPTURE_RELAXED = 0, 2
HOST_REGISTER_DEVICEMAP = 2
STREAM_PER_THREAD = ctypes.c_void_p(2)
EVENT_DISABLE_TIMING, EVENT_INTERPROCESS = 2, 4
ROUNDS = 200
PAGE = 4096


def us_since(began_ns):
    return (time.perf_counter_ns() - began_ns) / 1000


def device():
    """Whether a program can use the device at all, and how free it is."""
    free, total = driver.info()
    say(total_bytes=total, free_bytes=free, compute_mode=driver.attribute(20))


def attributes():
    """Stream memory operations on 64-bit words, and what else the device says it can."""
    names = {"stream_words_64": 122, "can_map_host": 19, "compute_preemption": 90,
             "unified_addressing": 41, "vmm": 102, "pools": 115,
             "host_register_read_only": 113}  # fmt: skip
    say(**{name: driver.attribute(number) for name, number in names.items()})


def registered_page():
    """A page of a file, shared with another mapping, takes stream writes."""
    if not has("cuStreamWriteValue64_v2"):
        leave("cuStreamWriteValue64_v2")
    stream = new_stream()
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(PAGE)
        page, other = mmap.mmap(file.fileno(), PAGE), mmap.mmap(file.fileno(), PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(PAGE),
             HOST_REGISTER_DEVICEMAP)  # fmt: skip
        there = U64()
        call("cuMemHostGetDevicePointer_v2", ctypes.byref(there), ctypes.c_void_p(address), 0)
        words = memoryview(other).cast("Q")
        took = []
        for number in range(1, ROUNDS + 1):
            began = time.perf_counter_ns()
            call("cuStreamWriteValue64_v2", stream, there, U64(number), 0)
            while words[0] != number:
                if us_since(began) > 1e6:
                    sys.exit("the other mapping did not see the word within a second")
            took.append(us_since(began))
        kernel = driver.function(load(), "penstock_spin")
        behind = []
        for number in range(ROUNDS + 1, ROUNDS + 21):
            driver.launch(kernel, stream, 200_000)
            call("cuStreamWriteValue64_v2", stream, there, U64(number), 0)
            while words[0] != number:
                pass
            seen = time.perf_counter_ns()
            driver.sync(stream)
            behind.append((time.perf_counter_ns() - seen) / 1000)
        call("cuMemHostUnregister", ctypes.c_void_p(address))
    say(seen_us=statistics.median(took), worst_us=max(took),
        before_synchronise_us=statistics.median(behind))  # fmt: skip


def idle_event():
    """An event on an idle stream is passed at once."""
    stream, event = new_stream(), new_event()
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        call("cuEventRecord", event, stream)
        while code("cuEventQuery", event) == driver.NOT_READY:
            pass
        took.append(us_since(began))
    say(passed_us=statistics.median(took), p95_us=statistics.quantiles(took, n=20)[-1])


def bracket():
    """Between two events on a busy stream lies what was launched between them, and nothing else."""
    stream, kernel = new_stream(), driver.function(load(), "penstock_spin")
    begin, end, apart = new_event(), new_event(), []
    name = "cuEventElapsedTime_v2" if has("cuEventElapsedTime_v2") else "cuEventElapsedTime"
    for _ in range(20):
        driver.launch(kernel, stream, 3_000_000)
        call("cuEventRecord", begin, stream)
        driver.launch(kernel, stream, 2_000_000)
        call("cuEventRecord", end, stream)
        driver.sync(stream)
        value = ctypes.c_float()
        call(name, ctypes.byref(value), begin, end)
        apart.append(value.value * 1000)
    say(apart_us=statistics.median(apart), launched_us=2000)


def start_delay():
    """From entering a launch call to the end of an empty kernel, as the host sees it: a bound."""
    stream, kernel = new_stream(), driver.function(load(), "penstock_tiny")
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        driver.launch(kernel, stream)
        while code("cuStreamQuery", stream) == driver.NOT_READY:
            pass
        took.append(us_since(began))
    say(launch_to_done_us=statistics.median(took), least_us=min(took))


def _query_beside_capture(relaxed):
    """(result of an event query, of the capture's end) while another thread captures globally."""
    stream, event = new_stream(), new_event()
    call("cuEventRecord", event, new_stream())
    call("cuCtxSynchronize")
    context = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(context))
    begun, asked = threading.Event(), threading.Event()
    results = {}

    def capture():
        call("cuCtxSetCurrent", context)
        call("cuStreamBeginCapture_v2", stream, CAPTURE_GLOBAL)
        begun.set()
        asked.wait(10)
        graph = ctypes.c_void_p()
        results["end"] = code("cuStreamEndCapture", stream, ctypes.byref(graph))

    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(10)
    mode = ctypes.c_int(CAPTURE_RELAXED)
    if relaxed:
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    results["query"] = code("cuEventQuery", event)
    if relaxed:
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    asked.set()
    thread.join()
    return results["query"], results["end"]


def capture_query():
    """An event query beside another thread's global capture; the same in relaxed mode."""
    plain, relaxed = _query_beside_capture(relaxed=False), _query_beside_capture(relaxed=True)
    say(plain_query=plain[0], plain_end=plain[1], relaxed_query=relaxed[0], relaxed_end=relaxed[1])


def ipc_events():
    """Only events without timing can be shared between processes."""
    handle = (ctypes.c_char * 64)()
    timed = new_event(0)
    refused = code("cuIpcGetEventHandle", handle, timed)
    event = ctypes.c_void_p()
    both = code("cuEventCreate", ctypes.byref(event), EVENT_INTERPROCESS)
    shared = new_event(EVENT_INTERPROCESS | EVENT_DISABLE_TIMING)
    say(timed_handle=refused, timed_interprocess=both,
        plain_handle=code("cuIpcGetEventHandle", handle, shared))  # fmt: skip


def kernel_as_function():
    """A CUkernel passes for a CUfunction in a launch."""
    if not has("cuLibraryLoadData"):
        leave("cuLibraryLoadData (CUDA 12.0 brought it)")
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    none = (None, None, 0, None, None, 0)
    call("cuLibraryLoadData", ctypes.byref(library), KERNELS, *none)
    call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"penstock_tiny")
    driver.launch(kernel)
    driver.sync()
    say(works=True)


def per_thread_stream():
    """Handle 2 is a stream of its own: busy while another stream is not."""
    kernel, beside = driver.function(load(), "penstock_spin"), new_stream()
    driver.launch(kernel, STREAM_PER_THREAD, 50_000_000)
    own, other = code("cuStreamQuery", STREAM_PER_THREAD), code("cuStreamQuery", beside)
    driver.sync(STREAM_PER_THREAD)
    say(own=own, beside=other)


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16)]


class Config(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_uint * 6), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)),
                ("count", ctypes.c_uint)]  # fmt: skip


PROGRAMMATIC_SERIALIZATION = 6


def early_launch():
    """Programmatic dependent launch overlaps two kernels; an event between them prevents it."""
    major = driver.attribute(75)
    if major < 9:
        leave("programmatic dependent launch (compute capability 9.0 brought it)")
    kernel, stream = driver.function(load(EARLY), "penstock_spin"), new_stream()
    event, duration = new_event(), U64(2_000_000)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))

    def launch(early):
        attribute = Attribute(id=PROGRAMMATIC_SERIALIZATION)
        attribute.value[0] = 1
        config = Config((1, 1, 1, 32, 1, 1), 0, stream, ctypes.pointer(attribute), int(early))
        call("cuLaunchKernelEx", ctypes.byref(config), kernel, parameters, None)

    def pair_us(early, marked):
        took = []
        for _ in range(10):
            driver.sync(stream)
            began = time.perf_counter_ns()
            launch(early=False)
            if marked:
                call("cuEventRecord", event, stream)
            launch(early)
            driver.sync(stream)
            took.append(us_since(began))
        return statistics.median(took)

    pair_us(early=True, marked=False)
    say(plain_us=pair_us(early=False, marked=False), early_us=pair_us(early=True, marked=False),
        marked_us=pair_us(early=True, marked=True))  # fmt: skip


def elapsed_step():
    """How coarse the float of cuEventElapsedTime is some seconds after the base event."""
    stream, base = new_stream(), new_event()
    call("cuEventRecord", base, stream)
    name = "cuEventElapsedTime_v2" if has("cuEventElapsedTime_v2") else "cuEventElapsedTime"
    time.sleep(2.2)
    event, seen = new_event(), set()
    for _ in range(400):
        call("cuEventRecord", event, stream)
        driver.sync(stream)
        value = ctypes.c_float()
        call(name, ctypes.byref(value), base, event)
        seen.add(value.value)
    times = sorted(seen)
    apart = sorted({later - earlier for earlier, later in itertools.pairwise(times)})
    # Times lie further apart than a step; how far they do differs by whole steps.
    steps = [b - a for a, b in itertools.pairwise(apart)] or apart
    say(at_ms=times[0], least_step_ns=min(steps) * 1e6)


def offers():
    """The newer functions that this driver has, by name, NVML's included."""
    cuda = {"checkpoint": "cuCheckpointProcessCheckpoint", "green_contexts": "cuGreenCtxCreate",
            "stream_words": "cuStreamWriteValue64_v2", "libraries": "cuLibraryLoadData",
            "tensor_maps": "cuTensorMapEncodeTiled", "multicast": "cuMulticastCreate"}  # fmt: skip
    nvml = {"accounting_v2": "nvmlDeviceGetAccountingStats_v2",
            "memory_limits": "nvmlDeviceSetMemoryLimits_v1",
            "time_slices": "nvmlDeviceSetVgpuSchedulerState"}  # fmt: skip
    library = ctypes.CDLL("libnvidia-ml.so.1")
    say(**{name: has(symbol) for name, symbol in cuda.items()},
        **{name: hasattr(library, symbol) for name, symbol in nvml.items()})  # fmt: skip


PROBES = (device, attributes, registered_page, idle_event, bracket, start_delay, capture_query,
          ipc_events, kernel_as_function, per_thread_stream, early_launch, elapsed_step,
          offers)  # fmt: skip

if __name__ == "__main__":
    driver.enter()
    {probe.__name__: probe for probe in PROBES}[sys.argv[1]]()
