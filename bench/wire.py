"""A network of nodes: TAP devices in network namespaces, and a process that carries their frames.

Not every kernel has netem, so frames are delayed and paced here. Each node has a line of a rate,
which carries frames one after another, in each direction on its own; a frame arrives a delay after
it has left the line. Frames are as large as the nodes' TCP makes them, up to 64 KiB, as with
segmentation offload.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

NETWORK = "10.192.0"
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP_WITHOUT_INFO_WITH_HEADER = 0x0002 | 0x1000 | 0x4000
_CHECKSUMS_AND_SEGMENTS = 0x01 | 0x02
_HEADER_BYTES = 10  # before each frame: what is left to do with it, such as cutting it in segments
_MOST_FRAME_BYTES = 1 << 17
_EARLY_S = 20e-6  # a frame that is due so soon is not waited for


@dataclass(frozen=True)
class Line:
    """What a node is connected by."""

    bits_per_s: float
    delay_s: float


def address_of(node: int) -> str:
    """The address of a node."""
    return f"{NETWORK}.{10 + node}"


def within(node: int, *command: str) -> list[str]:
    """A command line that runs on a node; its process is the command's."""
    return ["nsenter", f"--net=/run/netns/node-{node}", *command]


def start(nodes: int, line: Line) -> int:
    """Makes the nodes, and the process that carries their frames; returns its pid."""
    taps = [_node(number) for number in range(nodes)]
    pid = os.fork()
    if pid == 0:
        # What the processor's time is limited for is the cards, not the network.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        _Carrier(taps, line).run()
    for tap in taps:
        os.close(tap)
    return pid


def _node(number: int) -> int:
    """Makes a node; returns the descriptor of its network device."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"tap{number}"
    flags = _TAP_WITHOUT_INFO_WITH_HEADER
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _CHECKSUMS_AND_SEGMENTS)
    _ip(f"netns add node-{number}")
    _ip(f"link set {name} netns node-{number}")
    for words in (
        "link set lo up",
        f"link set {name} name eth0 address 02:00:00:00:00:{number:02x}",
        f"address add {address_of(number)}/24 dev eth0",
        "link set eth0 up",
    ):
        _ip(f"-netns node-{number} {words}")
    return tap


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, stdout=sys.stderr)


class _Carrier:
    """Carries frames between nodes, for ever."""

    def __init__(self, taps: list[int], line: Line) -> None:
        self._taps = taps
        self._line = line
        self._sent_s = [0.0] * len(taps)  # when the line of each node is free again
        self._received_s = [0.0] * len(taps)
        self._due: list[tuple[float, int, int, bytes]] = []  # time, number, node, frame
        self._number = 0

    def run(self) -> None:
        while True:
            left_s = max(self._due[0][0] - time.monotonic(), 0.0) if self._due else None
            ready, _, _ = select.select(self._taps, [], [], left_s)
            for tap in ready:
                self._take_all(self._taps.index(tap))
            now_s = time.monotonic() + _EARLY_S
            while self._due and self._due[0][0] <= now_s:
                _, _, node, frame = heapq.heappop(self._due)
                os.write(self._taps[node], frame)

    def _take_all(self, source: int) -> None:
        while True:
            try:
                frame = os.read(self._taps[source], _MOST_FRAME_BYTES)
            except BlockingIOError:
                return
            target = frame[_HEADER_BYTES : _HEADER_BYTES + 6]
            if target[0] & 1:  # to all
                nodes = [node for node in range(len(self._taps)) if node != source]
            else:
                nodes = [target[5]]
            self._carry(source, nodes, frame)

    def _carry(self, source: int, nodes: list[int], frame: bytes) -> None:
        long_s = 8 * (len(frame) - _HEADER_BYTES) / self._line.bits_per_s
        sent_s = self._sent_s[source] = max(self._sent_s[source], time.monotonic()) + long_s
        for node in nodes:
            # It arrives while it is still being sent, unless others are before it.
            self._received_s[node] = max(self._received_s[node] + long_s, sent_s)
            self._number += 1
            due_s = self._received_s[node] + self._line.delay_s
            heapq.heappush(self._due, (due_s, self._number, node, frame))
