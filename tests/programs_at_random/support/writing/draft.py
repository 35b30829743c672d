"""A random program while it is written: its dice, its lines, and choices that all steps share."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.programs_at_random.support.writing.entities import Context, Process, Stream, Thread

if TYPE_CHECKING:
    from tests.programs_at_random.support.writing.entities import Errand


SPIN_US = (20, 20, 50, 50, 100, 200, 300, 1000, 2500)
GRIDS = ((1, 32), (1, 64), (4, 128), (16, 256), (132, 256), (264, 1024))
SMALL_GRIDS = GRIDS[:4]  # of these any number runs at the same time
MOST_WORDS = 120
LARGE_WORDS = 150_000  # in an allocation that shares no slab
MOST_STREAMS = 6  # of a context that threads keep to themselves
QUEUES, MOST_QUEUES = 8, 32  # of a context; what lies in one queue cannot wait for each other


class Draft:
    """Draws one program. Every choice comes from its dice."""

    def __init__(self, seed: int, features: frozenset[str]) -> None:
        self.dice = random.Random(seed)  # noqa: S311  # a test's dice
        if self.dice.random() < 0.6:  # every byte is then seen, and compared
            features -= {"small", "small parts shared"}
        self.features = features
        self.lines: list[str] = []
        self.counters: dict[str, int] = {}
        self.phase = 0
        self.us_left = self.dice.randint(12_000, 40_000)
        self.devices = self.dice.choice((1, 1, 2, 2, 3, 4))
        self.kinds = ["plain", *self.inner_phases(), "plain"]
        self.processes = [self.process(i) for i in range(self.dice.choice((1, 1, 1, 2, 2, 3)))]
        self.errands: list[Errand] = []
        self.ready: set[Process] = set()
        self.paired: set[frozenset[int]] = set()  # of processes that know words of each other
        self.captures = False  # in this phase somebody may capture, so nobody waits for contexts
        self.legacy = True  # the legacy stream may be used in this phase

    def inner_phases(self) -> list[str]:
        kinds = ["plain"]
        if "captures" in self.features:
            kinds.append("calm")
        if self.features & {"meetings", "across devices", "across processes", "host waits"}:
            kinds += ["entangled"] * 2
        return ["plain", *(self.dice.choice(kinds) for _ in range(self.dice.randint(1, 3)))]

    def process(self, number: int) -> Process:
        dice, end = self.dice, len(self.kinds) - 1
        first = dice.choice((0, 0, 1)) if number else 0
        last = dice.choice((end, end, end - 1)) if number else end
        killed = number > 0 and "kills" in self.features and dice.random() < 0.3
        made = Process(number, first, last, killed)
        made.threads = [Thread(made, i) for i in range(dice.choice((1, 2, 2, 3, 4)))]
        devices = dice.sample(range(self.devices), dice.randint(1, min(2, self.devices)))
        made.contexts = [Context(made, made.new("c"), device) for device in devices]
        return made

    # ---- lines ----

    def next(self, what: str) -> int:
        self.counters[what] = self.counters.get(what, -1) + 1
        return self.counters[what]

    def group(self) -> str:
        return f" #{self.next('groups') + 1}"

    def next_stream(self, process: Process, device: int) -> int:
        """The number of a stream to be made in the device's primary context."""
        process.streams[device] = process.streams.get(device, 0) + 1
        return process.new("s")

    def emit(self, thread: Thread, text: str, group: str = "") -> None:
        self.lines.append(f"{thread.process.number}.{thread.number} {text}{group}")

    def us(self) -> int:
        """How long a kernel takes: at most what the program has left."""
        us = self.dice.choice(SPIN_US)
        if us > self.us_left:
            us = self.dice.randint(5, 20)
        self.us_left -= us
        return us

    def kernel(self, *, small: bool = False) -> str:
        grid, block = self.dice.choice(SMALL_GRIDS if small else GRIDS)
        how = self.dice.choice((0, 0, 0, 1, 2))
        return f"{self.us()} {grid} {block} {self.dice.randrange(4)} {how}"

    def kib(self) -> int:
        if "small" in self.features and self.dice.random() < 0.3:
            return self.dice.randint(1, 1000)
        return self.dice.randint(1025, 12_000)

    def list_of(self, thread: Thread, stream: Stream) -> int:
        """The number of the list into which host functions of this thread in this stream write."""
        return thread.process.lists.setdefault((thread, stream), len(thread.process.lists))

    # ---- streams ----

    def new_stream(
        self, thread: Thread, context: Context, *, shared: bool = False, group: str = ""
    ) -> Stream:
        made = sum(s.kind in {"blocking", "free"} for s in context.streams)
        free = self.dice.random() < 0.6
        if made >= MOST_STREAMS and thread.streams(context):
            return self.dice.choice(thread.streams(context))
        stream = Stream(
            context,
            self.next_stream(thread.process, context.device),
            None if shared else thread,
            "free" if free else "blocking",
        )
        priority = self.dice.choice((0, 0, -1))
        self.emit(thread, f"stream {stream.number} {context.number} {int(free)} {priority}", group)
        context.streams.append(stream)
        return stream

    def any_stream(self, thread: Thread, context: Context | None = None) -> Stream:
        """A stream that this thread may launch into now."""
        contexts = [context] if context else thread.process.contexts
        found = [
            s
            for c in contexts
            for s in c.streams
            if s.owner in {None, thread} and (self.legacy or s.kind != "legacy")
        ]
        return self.dice.choice(found)

    def private(self, thread: Thread, context: Context | None = None) -> Stream:
        """A stream of this thread alone, whose work surely does not wait for the legacy one."""
        found = thread.streams(context)
        return (
            self.dice.choice(found)
            if found
            else self.new_stream(thread, context or self.dice.choice(thread.process.contexts))
        )

    # ---- between phases and threads ----

    def all_meet(self, threads: list[Thread]) -> None:
        for process in dict.fromkeys(t.process for t in threads):
            together = self.group()
            for thread in process.threads:
                self.emit(thread, "barrier", together)
