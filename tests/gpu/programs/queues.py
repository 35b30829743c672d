"""When events on streams are passed: clocks, queues that streams share.

python queues.py NAME      prints what was found as JSON
"""

import ctypes
import statistics
import sys
import time

import driver
from driver import call, code, has, load, new_event, new_stream
from say import say

SECONDS, TRIES, EVERY_S = 5.0, 30, 0.25
LONG_NS, SHORT_NS = 10_000_000, 50_000
HELD_US = LONG_NS / 1000 / 2  # later than that, it waited for the other stream
MOST_STREAMS, QUEUED = 40, 900
ROUNDS = 5


def us_since(began_ns):
    return (time.perf_counter_ns() - began_ns) / 1000


def passed_us(event):
    """How long until the event is passed."""
    began = time.perf_counter_ns()
    while code("cuEventQuery", event) == driver.NOT_READY:
        pass
    return us_since(began)


def clock_drift():
    """Between events' clock and CLOCK_MONOTONIC, by the closest of many pairs of readings."""
    driver.enter()
    stream, base, event = new_stream(), new_event(), new_event()
    name = "cuEventElapsedTime_v2" if has("cuEventElapsedTime_v2") else "cuEventElapsedTime"
    call("cuEventRecord", base, stream)
    driver.sync(stream)
    origin_ns = time.monotonic_ns()
    pairs = []

    def pair():
        """(how far apart the host's two readings are, host's time, device's less host's); ns."""
        before = time.monotonic_ns()
        call("cuEventRecord", event, stream)
        driver.sync(stream)
        after, value = time.monotonic_ns(), ctypes.c_float()
        call(name, ctypes.byref(value), base, event)
        host = (before + after) / 2 - origin_ns
        return after - before, host, value.value * 1e6 - host

    end = time.monotonic() + (float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS)
    while time.monotonic() < end:
        pairs.append(min(pair() for _ in range(TRIES)))
        time.sleep(EVERY_S)
    hosts, apart = [one[1] for one in pairs], [one[2] for one in pairs]
    slope, start = statistics.linear_regression(hosts, apart)
    left = [y - slope * x - start for x, y in zip(hosts, apart, strict=True)]
    say(drift_ppm=slope * 1e6, spread_ns=statistics.pstdev(left),
        reading_ns=statistics.median(one[0] for one in pairs),
        seconds=(hosts[-1] - hosts[0]) / 1e9)  # fmt: skip


def marker():
    """A kernel on one stream beside a long one on another, without and with an event behind that;
    and an event on an idle stream beside a stream whose queue is full."""
    driver.enter()
    kernel, busy, beside = driver.function(load(), "penstock_spin"), new_stream(), new_stream()
    event, other = new_event(), new_event()

    def beside_us(mark):
        took = []
        for _ in range(ROUNDS):
            call("cuCtxSynchronize")
            driver.launch(kernel, busy, LONG_NS)
            if mark:
                call("cuEventRecord", event, busy)
            began = time.perf_counter_ns()
            driver.launch(kernel, beside, SHORT_NS)
            call("cuEventRecord", other, beside)
            passed_us(other)
            took.append(us_since(began))
        return statistics.median(took)

    beside_us(mark=True)  # warms up
    plain, marked = beside_us(mark=False), beside_us(mark=True)
    call("cuCtxSynchronize")
    for _ in range(QUEUED):
        driver.launch(kernel, busy, SHORT_NS)
    late = []
    while code("cuStreamQuery", busy) == driver.NOT_READY and len(late) < 100:
        began = time.perf_counter_ns()
        call("cuEventRecord", other, beside)
        passed_us(other)
        late.append(us_since(began))
    say(plain_us=plain, marked_us=marked, kernel_us=SHORT_NS / 1000, long_us=LONG_NS / 1000,
        idle_event_us=statistics.median(late), idle_event_worst_us=max(late))  # fmt: skip


def aliases():
    """From how many streams on an idle one waits for a busy one: they share a queue then."""
    driver.enter()
    kernel = driver.function(load(), "penstock_spin")
    busy, event = new_stream(), new_event()
    first, worst = 0, 0.0
    for count in range(2, MOST_STREAMS + 1):
        idle = new_stream()
        call("cuEventRecord", event, idle)  # the stream's first use, which may be slow
        driver.sync(idle)
        for _ in range(2):  # the second waits at the head of the queue
            driver.launch(kernel, busy, LONG_NS // 2)
        began = time.perf_counter_ns()
        call("cuEventRecord", event, idle)
        passed_us(event)
        took = us_since(began)
        driver.sync(busy)
        worst = max(worst, took)
        if took > HELD_US / 2:
            first = count
            break
    say(first_held_back=first, streams=count, worst_us=worst)


PROBES = (clock_drift, marker, aliases)

if __name__ == "__main__":
    {probe.__name__: probe for probe in PROBES}[sys.argv[1]]()
