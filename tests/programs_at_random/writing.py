"""Random programs, written as scripts for `player/`: valid, and without a deadlock by themselves.

Why none can hang on its own. Quiet points cut a program into phases. In a *plain* phase whatever
waits, waits for what was launched before, whoever launched it. In an *entangled* phase streams and
kernels wait for what is launched later, or at the same time by others: there each stream belongs to
one thread, nothing uses the legacy stream, nothing waits for a whole context or frees memory, and
all meetings stand in one order that every thread's own order of launches agrees with. While a
capture of mode GLOBAL is open (a *calm* phase), the other threads do nothing that it forbids.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FEATURES = frozenset(
    {
        "meetings",  # kernels and streams that wait for later work of the same device
        "across devices",  # … of another one
        "across processes",  # … of another process
        "legacy before meetings",  # the legacy stream has been used before, without a wait
        "host waits",  # a host function that waits for another thread
        "captures",
        "graph memory",
        "uploads",  # graphs uploaded as they are instantiated
        "pools",
        "shared pools",
        "physical",
        "descriptors",  # physical memory that goes to other processes
        "kept descriptors",  # … or that only a descriptor of the same process holds
        "ipc",
        "modules",
        "variables of libraries",
        "contexts",  # second ones, primary ones that come and go
        "limits",
        "small parts shared",  # of a slab, between processes
        "small",  # allocations that share a slab
        "kills",
        "makers of pools killed",  # while others have the pool
    }
)

# What is known not to hold yet. A line goes when its fault is mended.
BROKEN: dict[str, str] = {
    "across devices": "one or two in a hundred take a hundred times as long as without the shim: "
    "where no kind was measured yet, each meeting takes half a second, and is paid for",
    "across processes": "likewise",
    "shared pools": "a descriptor of a pool is taken to keep the pool's memory after its end; "
    "on the simulated device it does not: a real one must tell",
    "makers of pools killed": "what is exported stays charged while others have the pool",
}

SPIN_US = (20, 20, 50, 50, 100, 200, 300, 1000, 2500)
GRIDS = ((1, 32), (1, 64), (4, 128), (16, 256), (132, 256), (264, 1024))
SMALL_GRIDS = GRIDS[:4]  # of these any number runs at the same time
MOST_WORDS = 120
LARGE_WORDS = 150_000  # in an allocation that shares no slab
MOST_STREAMS = 6  # of a context that threads keep to themselves
QUEUES, MOST_QUEUES = 8, 32  # of a context; what lies in one queue cannot wait for each other


@dataclass(eq=False)
class Context:
    process: Process
    number: int
    device: int
    streams: list[Stream] = field(default_factory=list)


@dataclass(eq=False)
class Stream:
    context: Context
    number: int
    owner: Thread | None  # None: any thread of the process may use it in a plain phase
    kind: str  # blocking, free, legacy, own


@dataclass(eq=False)
class Buffer:
    stream: Stream
    number: int
    end: str  # the operation that gives it back


@dataclass(eq=False)
class Event:
    context: Context
    number: int
    timed: bool
    recorded: int = -1  # in which phase, last


@dataclass(eq=False)
class Thread:
    process: Process
    number: int
    events: list[Event] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    graphs: list[tuple[int, Stream, bool]] = field(default_factory=list)
    pools: list[tuple[int, Context]] = field(default_factory=list)

    def streams(self, context: Context | None = None) -> list[Stream]:
        """Those that nobody else uses."""
        contexts = [context] if context else self.process.contexts
        return [s for c in contexts for s in c.streams if s.owner is self and s.kind != "own"]


@dataclass(eq=False)
class Words:
    """Words in memory that streams and kernels wait for."""

    number: int
    context: Context
    owner: bool = False
    used: int = 0


@dataclass(eq=False)
class Errand:
    """What is to be done in the first plain phase from `phase` on."""

    phase: int
    run: Callable[[], None]


@dataclass(eq=False)
class Process:
    number: int
    first: int
    last: int
    killed: bool
    threads: list[Thread] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    words: dict[frozenset[int] | None, Words] = field(default_factory=dict)  # shared with whom
    lists: dict[tuple[Thread, Stream], int] = field(default_factory=dict)
    with_memory: set[int] = field(default_factory=set)  # graphs: neither copied nor put into others
    counters: dict[str, int] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)  # made in a device's primary context

    def new(self, kind: str) -> int:
        self.counters[kind] = self.counters.get(kind, -1) + 1
        return self.counters[kind]


class Writer:
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

    def write(self) -> str:
        self.plan_sharing()
        for phase, kind in enumerate(self.kinds):
            self.phase = phase
            here = [p for p in self.processes if p.first <= self.phase <= p.last]
            for process in here:
                if process not in self.ready:
                    self.set_up(process)
            getattr(self, kind)([t for p in here for t in p.threads])
            self.lines.append("quiet")
        channels = self.counters.get("channels", -1) + 1
        head = [
            f"process {p.number} threads {len(p.threads)} first {p.first} last {p.last} "
            f"end {'kill' if p.killed else 'exit'}"
            for p in self.processes
        ]
        contexts = [c.device for p in self.processes for c in p.contexts]
        rooms = [f"# device {d} contexts {contexts.count(d)}" for d in range(self.devices)]
        if "small" not in self.features:
            rooms.append("# exact")
        if "entangled" in self.kinds and any(
            made > QUEUES for p in self.processes for made in p.streams.values()
        ):
            rooms.append(f"# queues {MOST_QUEUES}")
        return "\n".join([*head, f"channels {channels}", *rooms, *self.lines, ""])

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

    def list_of(self, thread: Thread, stream: Stream) -> int:
        """Where host functions of this thread in this stream say that they ran."""
        return thread.process.lists.setdefault((thread, stream), len(thread.process.lists))

    # ---- a process begins ----

    def set_up(self, process: Process) -> None:
        self.ready.add(process)
        first = process.threads[0]
        together = self.group()
        for context in process.contexts:
            self.emit(first, f"retain {context.number} {context.device}", together)
            self.emit(first, f"kernels {context.number}", together)
        words = process.new("b")
        process.words[None] = Words(words, process.contexts[0])
        self.emit(first, f"words {words} {process.contexts[0].number} {MOST_WORDS} 0", together)
        for context in process.contexts:
            legacy = Stream(context, self.next_stream(process, context.device), None, "legacy")
            self.emit(first, f"default {legacy.number} {context.number} 1", together)
            context.streams.append(legacy)
            if self.dice.random() < 0.6:
                self.new_stream(first, context, shared=True, group=together)
        for thread in process.threads:
            self.emit(thread, "barrier", together)
        for thread in process.threads:
            for context in process.contexts:
                own = Stream(context, self.next_stream(process, context.device), thread, "own")
                self.emit(thread, f"default {own.number} {context.number} 2")
                context.streams.append(own)
            for _ in range(self.dice.randint(1, 2)):
                self.new_stream(thread, self.dice.choice(process.contexts))

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

    # ---- plain phases ----

    def plain(self, threads: list[Thread]) -> None:
        self.captures = "captures" in self.features and self.dice.random() < 0.5
        self.legacy = True
        steps = self.plain_steps()
        due = [e for e in self.errands if e.phase <= self.phase]
        self.errands = [e for e in self.errands if e.phase > self.phase]
        works: list[Callable[[], None]] = [e.run for e in due]
        for thread in threads:
            for _ in range(self.dice.randint(3, 9)):
                step = self.dice.choice(steps)
                works.append(functools.partial(step, thread))
        self.dice.shuffle(works)
        for work in works:
            work()
        if self.captures:
            self.all_meet(threads)
        for thread in threads:
            if self.dice.random() < 0.3:
                self.emit(thread, f"csync {self.dice.choice(thread.process.contexts).number}")

    def all_meet(self, threads: list[Thread]) -> None:
        for process in dict.fromkeys(t.process for t in threads):
            together = self.group()
            for thread in process.threads:
                self.emit(thread, "barrier", together)

    def plain_steps(self) -> list[Callable[[Thread], None]]:
        chosen = {
            "": [self.spins] * 4
            + [self.events] * 3
            + [self.wait_somehow] * 2
            + [self.linear] * 3
            + [self.give_back] * 4
            + [self.array]
            + [self.host, self.post, self.rest, self.contents, self.contents, self.come_and_go],
            "captures": [self.captured_graph] * 2,
            "pools": [self.pooled] * 3,
            "physical": [self.physical] * 2,
            "modules": [self.module],
            "contexts": [self.context],
            "limits": [self.limit],
        }
        steps = [
            step
            for name, group in chosen.items()
            if not name or name in self.features
            for step in group
        ]
        steps.append(self.made_graph)
        if not self.captures:
            steps = [s for s in steps if s != self.captured_graph]
        return steps

    def any_stream(self, thread: Thread, context: Context | None = None) -> Stream:
        """One that this thread may launch into now."""
        contexts = [context] if context else thread.process.contexts
        found = [
            s
            for c in contexts
            for s in c.streams
            if s.owner in {None, thread} and (self.legacy or s.kind != "legacy")
        ]
        return self.dice.choice(found)

    def private(self, thread: Thread, context: Context | None = None) -> Stream:
        """One that this thread alone uses; nothing waits for the legacy stream there for sure."""
        found = thread.streams(context)
        return (
            self.dice.choice(found)
            if found
            else self.new_stream(thread, context or self.dice.choice(thread.process.contexts))
        )

    def spins(self, thread: Thread) -> None:
        stream = self.any_stream(thread)
        for _ in range(self.dice.randint(1, 5)):
            self.emit(thread, f"spin {stream.number} {self.kernel()}")

    def event(self, thread: Thread, context: Context) -> Event:
        found = [e for e in thread.events if e.context is context]
        if found and self.dice.random() < 0.6:
            return self.dice.choice(found)
        timed = self.dice.random() < 0.5
        event = Event(context, thread.process.new("e"), timed)
        flags = (0 if timed else 2) | self.dice.choice((0, 1))
        self.emit(thread, f"event {event.number} {context.number} {flags}")
        thread.events.append(event)
        return event

    def events(self, thread: Thread) -> None:
        stream = self.any_stream(thread)
        event = self.event(thread, stream.context)
        if self.dice.random() < 0.7:
            self.emit(thread, f"spin {stream.number} {self.kernel()}")
        self.emit(thread, f"record {stream.number} {event.number}")
        event.recorded = self.phase
        known = [
            e for t in thread.process.threads for e in t.events if 0 <= e.recorded < self.phase
        ]
        for _ in range(self.dice.randint(0, 2)):
            what = self.dice.choice([event, event, *known])
            other = self.any_stream(thread)
            self.emit(thread, f"wait {other.number} {what.number}")
            self.emit(thread, f"spin {other.number} {self.kernel()}")
        if self.dice.random() < 0.4:
            self.emit(thread, f"{self.dice.choice(('esync', 'eloop'))} {event.number}")
            self.emit(thread, f"equery {event.number} 1")

    def wait_somehow(self, thread: Thread) -> None:
        ways = ["ssync", "sloop", "squery", "csync"]
        way = self.dice.choice(ways)
        if way == "csync" and not self.captures:
            self.emit(thread, f"csync {self.dice.choice(thread.process.contexts).number}")
        elif way == "squery":
            self.emit(thread, f"squery {self.any_stream(thread).number} 0")
        else:
            stream = self.private(thread)
            self.emit(thread, f"{'sloop' if way == 'sloop' else 'ssync'} {stream.number}")
            self.emit(thread, f"squery {stream.number} 1")

    def host(self, thread: Thread) -> None:
        stream = self.any_stream(thread)
        where = self.list_of(thread, stream)
        for _ in range(self.dice.randint(1, 3)):
            how = self.dice.choice(("host", "host", "callback", "hostcalls"))
            self.emit(thread, f"{how} {stream.number} {where} {thread.process.new('ids')}")
        self.emit(thread, f"ssync {stream.number}")
        self.emit(thread, f"order {where}")

    def post(self, thread: Thread) -> None:
        """Another thread goes on when this one has come here."""
        others = [
            t
            for p in self.processes
            if p in self.ready and p.last >= self.phase
            for t in p.threads
            if t is not thread
        ]
        if not others or self.counters.get("flags", 0) > 250:
            return
        flag, together = self.next("flags"), self.group()
        self.emit(thread, f"post {flag}", together)
        self.emit(self.dice.choice(others), f"await {flag}", together)

    def rest(self, thread: Thread) -> None:
        self.emit(thread, f"rest {self.dice.randint(100, 3000)}")

    def come_and_go(self, thread: Thread) -> None:
        """A stream that is destroyed while its work runs."""
        context = self.dice.choice(thread.process.contexts)
        number = self.next_stream(thread.process, context.device)
        self.emit(thread, f"stream {number} {context.number} {self.dice.randrange(2)} 0")
        self.emit(thread, f"spin {number} {self.kernel()}")
        self.emit(thread, f"sdestroy {number}")

    # ---- memory ----

    def kib(self) -> int:
        if "small" in self.features and self.dice.random() < 0.3:
            return self.dice.randint(1, 1000)
        return self.dice.randint(1025, 12_000)

    def linear(self, thread: Thread) -> None:
        stream = self.private(thread)
        number, context = thread.process.new("b"), stream.context.number
        how = self.dice.choice(("alloc", "alloc", "alloc", "pitch", "managed"))
        size = (
            f"{self.dice.randint(1000, 5000)} {self.dice.randint(1200, 2500)}"
            if how == "pitch"
            else f"{self.kib()}"
        )
        self.emit(thread, f"{how} {number} {context} {size}")
        thread.buffers.append(Buffer(stream, number, "free"))

    def contents(self, thread: Thread) -> None:
        for _ in range(self.dice.randint(1, 3)):
            self.write_something(thread)
        if thread.buffers:
            buffer = self.dice.choice(thread.buffers)
            self.emit(thread, f"ssync {buffer.stream.number}")
            self.emit(thread, f"look {buffer.number}")

    def write_something(self, thread: Thread, *, pageable: bool = True) -> None:
        if not thread.buffers:
            return
        buffer = self.dice.choice(thread.buffers)
        at, bytes_ = f"{buffer.stream.number} {buffer.number}", self.dice.randint(1, 16) << 12
        same = [b for b in thread.buffers if b.stream is buffer.stream and b is not buffer]
        how = self.dice.choice(("fill", "copy", "put") if pageable else ("fill", "copy"))
        if how == "copy" and same:
            self.emit(thread, f"copy {at} {self.dice.choice(same).number} {bytes_}")
        elif how == "put":
            self.emit(thread, f"put {at} {self.dice.randrange(1000)} {bytes_}")
        else:
            value, width = self.dice.randrange(256), self.dice.choice((1, 4))
            self.emit(thread, f"fill {at} {value} {bytes_} {width}")

    def give_back(self, thread: Thread) -> None:
        if not thread.buffers:
            return
        buffer = thread.buffers.pop(self.dice.randrange(len(thread.buffers)))
        self.let_go(thread, buffer)

    def let_go(self, thread: Thread, buffer: Buffer) -> None:
        if buffer.end == "afree":
            if self.dice.random() < 0.2:
                self.emit(thread, f"ssync {buffer.stream.number}")
                self.emit(thread, f"free {buffer.number}")
                return
            self.emit(thread, f"afree {buffer.stream.number} {buffer.number}")
            return
        self.emit(thread, f"ssync {buffer.stream.number}")
        self.emit(thread, f"{buffer.end} {buffer.number}")

    def array(self, thread: Thread) -> None:
        number, context = thread.process.new("y"), self.dice.choice(thread.process.contexts)
        size = f"{self.dice.randint(300, 1500)} {self.dice.randint(300, 1500)}"
        self.emit(thread, f"array {number} {context.number} {size}")
        if self.dice.random() < 0.6:
            self.emit(thread, f"ydestroy {number}")

    def pooled(self, thread: Thread) -> None:
        process, stream = thread.process, self.private(thread)
        context = stream.context
        number = process.new("b")
        if not thread.pools or self.dice.random() < 0.2:
            pool = process.new("p")
            how = self.dice.choice(("pool", "defpool"))
            exported = " 0" if how == "pool" else ""
            self.emit(thread, f"{how} {pool} {context.number} {context.device}{exported}")
            if self.dice.random() < 0.4:
                self.emit(thread, f"threshold {pool} {self.dice.choice((0, 16, 1000))}")
            thread.pools.append((pool, context))
        own = [p for p, c in thread.pools if c is context]
        if own and self.dice.random() < 0.6:
            self.emit(
                thread, f"palloc {number} {stream.number} {self.dice.choice(own)} {self.kib()}"
            )
        else:
            self.emit(thread, f"aalloc {number} {stream.number} {self.kib()}")
        self.emit(thread, f"fill {stream.number} {number} 7 65536 1")
        thread.buffers.append(Buffer(stream, number, "afree"))
        if self.dice.random() < 0.6:
            thread.buffers.pop()
            self.emit(thread, f"spin {stream.number} {self.kernel()}")
            self.emit(thread, f"afree {stream.number} {number}")
        if own and self.dice.random() < 0.4:
            self.emit(thread, f"trim {self.dice.choice(own)} {self.dice.choice((0, 0, 8))}")

    def physical(self, thread: Thread) -> None:
        stream = self.private(thread)
        context, new = stream.context, thread.process.new
        handle, buffer = new("v"), new("b")
        self.emit(
            thread,
            f"vcreate {handle} {context.number} {context.device} {self.dice.randint(1, 6)}",
        )
        if "kept descriptors" in self.features and self.dice.random() < 0.3:
            self.keep_descriptor(thread, handle)
        if self.dice.random() < 0.2:
            self.emit(thread, f"vrelease {handle}")
            return
        self.emit(thread, f"vmap {buffer} {handle}")
        mapped = Buffer(stream, buffer, "vunmap")
        thread.buffers.append(mapped)
        if self.dice.random() < 0.3:
            again = new("b")
            self.emit(thread, f"vmap {again} {handle}")
            thread.buffers.append(Buffer(stream, again, "vunmap"))
        if self.dice.random() < 0.6:
            self.emit(thread, f"vrelease {handle}")
        if self.dice.random() < 0.3:
            retained = new("v")
            self.emit(thread, f"vretain {retained} {buffer}")
            if self.dice.random() < 0.6:
                thread.buffers.remove(mapped)
                self.let_go(thread, mapped)
            self.emit(thread, f"vrelease {retained}")

    def keep_descriptor(self, thread: Thread, handle: int) -> None:
        kept = thread.process.new("f")
        self.emit(thread, f"fdkeep {kept} {handle}")
        if self.dice.random() < 0.5:
            again = thread.process.new("v")
            self.emit(thread, f"fdimport {again} {kept}")
            self.emit(thread, f"vrelease {again}")
        if self.dice.random() < 0.6:
            self.emit(thread, f"fdclose {kept}")

    # ---- code, limits, contexts ----

    def module(self, thread: Thread) -> None:
        stream = self.private(thread)
        load, spin, unload, kind = self.dice.choice(
            (("module", "mspin", "unload", "m"), ("library", "lspin", "lunload", "l"))
        )
        number, image = thread.process.new(kind), self.dice.randrange(3)
        if load == "library" and "variables of libraries" not in self.features:
            image = 0
        self.emit(thread, f"{load} {number} {stream.context.number} {image}")
        for _ in range(self.dice.randint(0, 3)):
            self.emit(thread, f"{spin} {stream.number} {number} {self.us()}")
        if self.dice.random() < 0.7:
            self.emit(thread, f"ssync {stream.number}")
            self.emit(thread, f"{unload} {number}")

    def limit(self, thread: Thread) -> None:
        context = self.dice.choice(thread.process.contexts)
        self.emit(thread, f"heap {context.number} {self.dice.randint(8, 40)}")

    def context(self, thread: Thread) -> None:
        """Another one, made and destroyed, or a primary one retained once more or for a while."""
        process, new = thread.process, thread.process.new
        number, device = new("c"), self.dice.randrange(self.devices)
        make, end = self.dice.choice((("create", "destroy"), ("retain", "release")))
        self.emit(thread, f"{make} {number} {device}")
        if self.dice.random() < 0.8:
            stream, buffer = self.next_stream(process, device), new("b")
            kept = process.contexts[0]
            self.emit(thread, f"kernels {number}")
            self.emit(thread, f"stream {stream} {number} {self.dice.randrange(2)} 0")
            self.emit(thread, f"alloc {buffer} {number} {self.dice.randint(1025, 4000)}")
            for _ in range(self.dice.randint(1, 3)):
                self.emit(thread, f"spin {stream} {self.kernel()}")
            if self.dice.random() < 0.5:
                self.emit(thread, f"ssync {stream}")
            if self.dice.random() < 0.3:
                self.emit(thread, f"spin {self.any_stream(thread, kept).number} {self.kernel()}")
        if make == "create" and self.dice.random() < 0.1:
            return  # stays until the process ends
        self.emit(thread, f"{end} {number}")

    # ---- graphs ----

    def capture(self, thread: Thread, mode: int) -> tuple[int, Stream, bool]:
        """A graph from a stream that nobody else uses; True: it writes into buffers of it."""
        found = [s for s in thread.streams() if s.kind == "free"]
        stream = self.dice.choice(found) if found else None
        if stream is None:
            context = self.dice.choice(thread.process.contexts)
            number = self.next_stream(thread.process, context.device)
            stream = Stream(context, number, thread, "free")
            self.emit(thread, f"stream {stream.number} {context.number} 1 0")
            context.streams.append(stream)
        graph, together = thread.process.new("g"), self.group()
        buffers = [b for b in thread.buffers if b.stream is stream and b.end != "afree"]
        where = self.list_of(thread, stream)
        context = stream.context
        forks = self.dice.random() < 0.4
        if forks:
            side = self.next_stream(thread.process, context.device)
            forked, joined = thread.process.new("e"), thread.process.new("e")
            self.emit(thread, f"stream {side} {context.number} 1 0", together)
            self.emit(thread, f"event {forked} {context.number} 2", together)
            self.emit(thread, f"event {joined} {context.number} 2", together)
        self.emit(thread, f"begin {stream.number} {mode}", together)
        writes = False
        for _ in range(self.dice.randint(1, 4)):
            self.emit(thread, f"spin {stream.number} {self.kernel()}")
            if self.dice.random() < 0.4:  # so that others meet it
                self.emit(thread, f"rest {self.dice.randint(200, 3000)}")
        if forks:
            self.emit(thread, f"record {stream.number} {forked}", together)
            self.emit(thread, f"wait {side} {forked}", together)
            self.emit(thread, f"spin {side} {self.kernel()}")
            self.emit(thread, f"spin {stream.number} {self.kernel()}")
            self.emit(thread, f"record {side} {joined}", together)
            self.emit(thread, f"wait {stream.number} {joined}", together)
        if buffers and self.dice.random() < 0.5:
            number = self.dice.choice(buffers).number
            self.emit(
                thread, f"fill {stream.number} {number} {self.dice.randrange(256)} 4096 1", together
            )
            writes = True
        if self.dice.random() < 0.3:
            self.emit(thread, f"host {stream.number} {where} {thread.process.new('ids')}", together)
            writes = True
        if "graph memory" in self.features and self.dice.random() < 0.4:
            number = thread.process.new("b")
            self.emit(thread, f"aalloc {number} {stream.number} {self.kib()}", together)
            thread.process.with_memory.add(graph)
            self.emit(thread, f"spin {stream.number} {self.kernel()}")
            self.emit(thread, f"afree {stream.number} {number}", together)
        self.emit(thread, f"end {graph} {stream.number}", together)
        return graph, stream, writes

    def captured_graph(self, thread: Thread) -> None:
        mode = self.dice.choice((1, 2))
        self.use_graph(thread, *self.capture(thread, mode))

    def made_graph(self, thread: Thread) -> None:
        stream, new = self.private(thread), thread.process.new
        graph, together = new("g"), self.group()
        self.emit(thread, f"graph {graph} {stream.context.number}", together)
        buffers = [b for b in thread.buffers if b.stream is stream and b.end != "afree"]
        writes, branches = False, self.dice.random() < 0.3
        for _ in range(self.dice.randint(1, 5)):
            kinds = ["kernel", "kernel", "kernel", "memory"]
            if not branches:  # what comes of branches has no order
                kinds += ["fill", "host", "child"]
            what = self.dice.choice(kinds)
            if what == "fill" and buffers:
                number = self.dice.choice(buffers).number
                self.emit(thread, f"gfill {graph} {number} {self.dice.randrange(256)}", together)
                writes = True
            elif what == "host":
                where = self.list_of(thread, stream)
                self.emit(thread, f"ghost {graph} {where} {new('ids')}")
                writes = True
            elif what == "memory" and "graph memory" in self.features:
                self.emit(thread, f"gmemory {graph} {self.dice.randint(1, 30)}")
                thread.process.with_memory.add(graph)
            elif what == "child" and thread.graphs:
                child, of, wrote = self.dice.choice(thread.graphs)
                if of is stream and child not in thread.process.with_memory:
                    self.emit(thread, f"gchild {graph} {child}")
                    writes |= wrote
            else:
                alone = int(branches and self.dice.random() < 0.5)
                self.emit(
                    thread,
                    f"gkernel {graph} {self.us()} {self.dice.choice((1, 4, 16))} "
                    f"{self.dice.randrange(4)} {alone}",
                )
        self.use_graph(thread, graph, stream, writes)

    def use_graph(self, thread: Thread, graph: int, stream: Stream, writes: bool) -> None:  # noqa: FBT001
        new = thread.process.new
        executable, flags = new("x"), 0
        if "uploads" in self.features and self.dice.random() < 0.2:
            flags = 2
        self.emit(thread, f"inst {executable} {graph} {flags}")
        if self.dice.random() < 0.2:
            self.emit(thread, f"upload {stream.number} {executable}")
        for _ in range(self.dice.randint(0, 3)):
            other = stream if writes else self.private(thread, stream.context)
            self.emit(thread, f"launch {other.number} {executable}")
            change = self.dice.random()
            if change < 0.2:
                self.emit(thread, f"setkernel {executable} {graph} {self.us()}")
            elif change < 0.3 and graph not in thread.process.with_memory:
                copy = new("g")
                self.emit(thread, f"clone {copy} {graph}")
                self.emit(thread, f"update {executable} {copy}")
                self.emit(thread, f"gdestroy {copy}")
        if self.dice.random() < 0.4:
            self.emit(thread, f"ssync {stream.number}")
        if self.dice.random() < 0.6:
            self.emit(thread, f"xdestroy {executable}")
        if self.dice.random() < 0.3:
            self.emit(thread, f"gtrim {stream.context.number}")
        if self.dice.random() < 0.5:
            self.emit(thread, f"gdestroy {graph}")
        else:
            thread.graphs.append((graph, stream, writes))

    # ---- calm phases: somebody captures, and everybody else must bear it ----

    def calm(self, threads: list[Thread]) -> None:
        capturing = {}
        for thread in threads:
            capturing.setdefault(thread.process, self.dice.choice(thread.process.threads))
        self.legacy, self.captures = False, True
        works = []
        for thread in threads:
            mine = capturing[thread.process] is thread
            for _ in range(self.dice.randint(2, 7)):
                step = self.capture_globally if mine else self.calm_step
                works.append(functools.partial(step, thread))
        self.dice.shuffle(works)
        for work in works:
            work()
        self.all_meet(threads)
        self.legacy = True

    def capture_globally(self, thread: Thread) -> None:
        if self.dice.random() < 0.4:
            self.use_graph(thread, *self.capture(thread, 0))
        else:
            self.calm_step(thread)

    def calm_step(self, thread: Thread) -> None:
        stream = self.any_stream(thread)
        event = self.dice.choice(thread.events) if thread.events else None
        how = self.dice.randrange(5)
        if how == 0 and event and event.context is stream.context:
            self.emit(thread, f"record {stream.number} {event.number}")
            event.recorded = self.phase
            self.emit(thread, f"wait {self.any_stream(thread).number} {event.number}")
        elif how == 1:
            self.write_something(thread, pageable=False)
        elif how == 2:
            self.emit(
                thread,
                f"host {stream.number} {self.list_of(thread, stream)} {thread.process.new('ids')}",
            )
        else:
            for _ in range(self.dice.randint(1, 3)):
                self.emit(thread, f"spin {stream.number} {self.kernel()}")

    # ---- entangled phases ----

    def entangled(self, threads: list[Thread]) -> None:
        self.legacy = False
        if "legacy before meetings" in self.features and self.dice.random() < 0.6:
            self.use_legacy(threads)
            self.all_meet(threads)
        for thread in threads:
            while len(self.entangled_streams(thread)) < 2 and self.room(thread):
                contexts = [c for c in thread.process.contexts if self.room_in(c)]
                self.new_stream(thread, self.dice.choice(contexts))
        for _ in range(self.dice.randint(5, 12) * len(threads)):
            thread = self.dice.choice(threads)
            if self.dice.random() < 0.4:
                self.meeting(thread, threads)
            else:
                self.entangled_step(thread)
        for thread in threads:
            self.leave_entangled(thread)
        self.legacy = True

    def use_legacy(self, threads: list[Thread]) -> None:
        for thread in threads:
            for _ in range(self.dice.randint(0, 3)):
                context = self.dice.choice(thread.process.contexts)
                stream = next(s for s in context.streams if s.kind == "legacy")
                self.emit(thread, f"spin {stream.number} {self.kernel(small=True)}")

    def leave_entangled(self, thread: Thread) -> None:
        for context in thread.process.contexts:
            if self.dice.random() < 0.5:
                self.emit(thread, f"csync {context.number}")
        for stream in self.entangled_streams(thread):
            self.emit(thread, f"ssync {stream.number}")
            self.emit(thread, f"squery {stream.number} 1")
            if (thread, stream) in thread.process.lists:
                self.emit(thread, f"order {self.list_of(thread, stream)}")

    def entangled_streams(self, thread: Thread) -> list[Stream]:
        return [
            s
            for c in thread.process.contexts
            for s in c.streams
            if s.owner is thread and s.kind in {"free", "blocking"}
        ]

    @staticmethod
    def room_in(context: Context) -> bool:
        return sum(s.kind in {"free", "blocking"} for s in context.streams) < MOST_STREAMS

    def room(self, thread: Thread) -> bool:
        return any(self.room_in(c) for c in thread.process.contexts)

    def entangled_step(self, thread: Thread, but: Stream | None = None) -> None:
        """Something that nobody waits at, on streams of the thread's own other than `but`."""
        streams = [s for s in self.entangled_streams(thread) if s is not but]
        if not streams:
            return
        stream = self.dice.choice(streams)
        how = self.dice.randrange(8)
        if how == 0:
            self.emit(
                thread,
                f"host {stream.number} {self.list_of(thread, stream)} {thread.process.new('ids')}",
            )
        elif how == 1 and not but:
            self.emit(thread, f"ssync {stream.number}")
        elif how == 2:
            same = [s for s in streams if s.context is stream.context]
            event = next((e for e in thread.events if e.context is stream.context), None)
            if event:
                self.emit(thread, f"record {stream.number} {event.number}")
                self.emit(
                    thread, f"wait {self.dice.choice([*same, *streams]).number} {event.number}"
                )
                event.recorded = self.phase
        elif how == 3:
            buffers = [b for b in thread.buffers if b.stream in streams]
            if buffers:
                buffer = self.dice.choice(buffers)
                at = f"{buffer.stream.number} {buffer.number}"
                self.emit(thread, f"fill {at} {self.dice.randrange(256)} 8192 1")
        else:
            for _ in range(self.dice.randint(1, 3)):
                self.emit(thread, f"spin {stream.number} {self.kernel(small=True)}")

    def meeting(self, thread: Thread, threads: list[Thread]) -> None:
        """A stream of this thread and another stream, of whomever, wait for each other."""
        own = self.entangled_streams(thread)
        if not own:
            return
        stream = self.dice.choice(own)
        partner = self.dice.choice(threads)
        others = [s for s in self.entangled_streams(partner) if s is not stream]
        if not others:
            return
        other = self.dice.choice(others)
        if not self.may_meet(stream, other):
            return
        if partner.process is thread.process and partner is not thread and self.dice.random() < 0.2:
            self.host_waits(thread, partner, stream, other)
            return
        words = self.words_for(thread.process, partner.process)
        if words is None or "meetings" not in self.features:
            return
        (mine, theirs), first, second = words
        together = self.group()
        between: Callable[[], None] = lambda: None  # noqa: E731
        if partner is thread:
            steps = self.dice.randint(0, 4)
            between = lambda: [self.entangled_step(thread, but=stream) for _ in range(steps)]  # noqa: E731
        how, wide = self.dice.randrange(4), self.dice.randrange(2)
        if how == 0:
            self.emit(thread, f"waitv {stream.number} {mine} {first} 1 {wide}", together)
            between()
            self.emit(partner, f"writev {other.number} {theirs} {first} 1 {wide}", together)
        elif how == 1:
            self.emit(thread, f"meet {stream.number} {mine} {first} 1 {mine} {second} 1", together)
            between()
            self.emit(
                partner, f"meet {other.number} {theirs} {second} 1 {theirs} {first} 1", together
            )
        elif how == 2:
            self.emit(thread, f"meet {stream.number} {mine} {first} 1 {mine} -1 0", together)
            between()
            self.emit(partner, f"writev {other.number} {theirs} {first} 1 1", together)
        else:
            self.emit(thread, f"meet {stream.number} {mine} {first} 1 {mine} -1 0", together)
            between()
            self.emit(
                partner, f"meet {other.number} {theirs} {first} 0 {theirs} {first} 1", together
            )

    def may_meet(self, one: Stream, other: Stream) -> bool:
        made = (s.context.process.streams[s.context.device] for s in (one, other))
        if max(made) > MOST_QUEUES:
            return False
        if one.context.process is not other.context.process:
            return "across processes" in self.features
        return one.context.device == other.context.device or "across devices" in self.features

    def words_for(self, one: Process, other: Process) -> tuple[tuple[int, int], int, int] | None:
        """The numbers that both know some words by, and two words that nobody has used."""
        if one is other:
            words = one.words[None]
            names = words.number, words.number
        else:
            pair = frozenset((one.number, other.number))
            if pair not in one.words or pair not in other.words:
                return None
            words = one.words[pair] if one.words[pair].owner else other.words[pair]
            names = one.words[pair].number, other.words[pair].number
        if words.used + 2 > MOST_WORDS:
            return None
        words.used += 2
        return names, words.used - 2, words.used - 1

    def host_waits(self, thread: Thread, partner: Thread, stream: Stream, other: Stream) -> None:
        """A host function goes on when the partner has launched something; it launches at once."""
        if "host waits" not in self.features or self.counters.get("flags", 0) > 240:
            return
        come, waits, done = self.next("flags"), self.next("flags"), self.next("flags")
        together, where = self.group(), self.list_of(thread, stream)
        self.emit(partner, f"post {come}", together)
        self.emit(thread, f"await {come}", together)
        self.emit(
            thread,
            f"hostwaits {stream.number} {where} {thread.process.new('ids')} {done}",
            together,
        )
        self.emit(thread, f"post {waits}", together)
        self.emit(partner, f"await {waits}", together)
        for _ in range(self.dice.randint(1, 4)):
            self.emit(partner, f"spin {other.number} {self.kernel(small=True)}")
        self.emit(partner, f"post {done}", together)

    # ---- from process to process ----

    def plan_sharing(self) -> None:
        ways = [
            (self.share_words, {"across processes"}),
            (self.share_words, {"across processes"}),
            (self.share_memory, {"ipc"}),
            (self.share_event, {"ipc"}),
            (self.share_physical, {"descriptors", "physical"}),
            (self.share_pool, {"shared pools", "pools"}),
        ]
        for giver in self.processes:
            for taker in self.processes:
                if giver is taker:
                    continue
                for way, needs in ways:
                    if needs <= self.features and self.dice.random() < 0.5:
                        self.later(max(giver.first, taker.first), way, giver, taker)

    def later(
        self, phase: int, run: Callable[..., None], giver: Process, taker: Process, *more: object
    ) -> None:
        def now() -> None:
            both = max(giver.first, taker.first), min(giver.last, taker.last)
            if both[0] <= self.phase <= both[1]:
                run(giver, taker, *more)

        self.errands.append(Errand(phase, now))

    def common(self, giver: Process, taker: Process) -> tuple[Context, Context] | None:
        pairs = [(a, b) for a in giver.contexts for b in taker.contexts if a.device == b.device]
        return self.dice.choice(pairs) if pairs else None

    def share_words(self, giver: Process, taker: Process) -> None:
        pair = frozenset((giver.number, taker.number))
        contexts = self.common(giver, taker)
        if pair in self.paired or contexts is None or self.counters.get("slots", 0) > 60:
            return
        self.paired.add(pair)
        number, slot = giver.new("b"), self.next("slots")
        giver.words[pair] = Words(number, contexts[0], owner=True)
        together = self.group()
        thread = self.dice.choice(giver.threads)
        self.emit(thread, f"words {number} {contexts[0].number} {LARGE_WORDS} 1", together)
        self.emit(thread, f"give {number} {slot}", together)

        def take(_: Process, __: Process) -> None:
            taken = taker.new("b")
            self.emit(
                self.dice.choice(taker.threads),
                f"open {taken} {contexts[1].number} {slot} 1",
                together,
            )
            taker.words[pair] = Words(taken, contexts[1])

        self.later(self.phase + 1, take, giver, taker)

    def share_memory(self, giver: Process, taker: Process) -> None:
        contexts = self.common(giver, taker)
        if contexts is None or self.counters.get("slots", 0) > 60:
            return
        thread, slot = self.dice.choice(giver.threads), self.next("slots")
        stream, number = self.private(thread, contexts[0]), giver.new("b")
        kib = self.kib() if "small parts shared" in self.features else 1025 + self.kib()
        self.emit(thread, f"alloc {number} {contexts[0].number} {kib}")
        self.emit(thread, f"put {stream.number} {number} {self.dice.randrange(1000)} 65536")
        self.emit(thread, f"ssync {stream.number}")
        self.emit(thread, f"give {number} {slot}")
        buffer = Buffer(stream, number, "free")

        def take(*_: object) -> None:
            taken, by = taker.new("b"), self.dice.choice(taker.threads)
            at = self.private(by, contexts[1])
            self.emit(by, f"open {taken} {contexts[1].number} {slot} {kib}")
            self.emit(by, f"look {taken}")
            self.emit(by, f"fill {at.number} {taken} {self.dice.randrange(256)} 4096 1")
            self.later(self.phase + 1, close, giver, taker, by, Buffer(at, taken, "close"))

        def close(_: Process, __: Process, by: Thread, what: Buffer) -> None:
            self.let_go(by, what)
            self.later(self.phase + 1, end, giver, taker)

        def end(*_: object) -> None:
            self.emit(thread, f"look {number}")
            self.let_go(thread, buffer)

        self.later(self.phase + 1, take, giver, taker)

    def share_event(self, giver: Process, taker: Process) -> None:
        contexts = self.common(giver, taker)
        if contexts is None or self.counters.get("slots", 0) > 60:
            return
        thread, slot = self.dice.choice(giver.threads), self.next("slots")
        stream, number = self.private(thread, contexts[0]), giver.new("e")
        self.emit(thread, f"event {number} {contexts[0].number} 6")
        self.emit(thread, f"spin {stream.number} {self.kernel()}")
        self.emit(thread, f"record {stream.number} {number}")
        self.emit(thread, f"egive {number} {slot}")

        def take(*_: object) -> None:
            taken, by = taker.new("e"), self.dice.choice(taker.threads)
            at = self.private(by, contexts[1])
            self.emit(by, f"eopen {taken} {contexts[1].number} {slot}")
            self.emit(by, f"wait {at.number} {taken}")
            self.emit(by, f"spin {at.number} {self.kernel()}")
            self.emit(by, f"esync {taken}")
            self.emit(by, f"equery {taken} 1")
            if self.dice.random() < 0.5:
                self.emit(by, f"record {at.number} {taken}")

        self.later(self.phase + 1, take, giver, taker)

    def share_physical(self, giver: Process, taker: Process) -> None:
        contexts = self.common(giver, taker)
        if contexts is None or self.counters.get("channels", 0) > 28:
            return
        thread, channel = self.dice.choice(giver.threads), self.next("channels")
        stream, number, handle = self.private(thread, contexts[0]), giver.new("b"), giver.new("v")
        mib = self.dice.randint(1, 6)
        self.emit(thread, f"vcreate {handle} {contexts[0].number} {contexts[0].device} {mib}")
        self.emit(thread, f"vmap {number} {handle}")
        self.emit(thread, f"put {stream.number} {number} {self.dice.randrange(1000)} 65536")
        self.emit(thread, f"ssync {stream.number}")
        self.emit(thread, f"vsend {handle} {channel}")
        buffer = Buffer(stream, number, "vunmap")
        early = "kept descriptors" in self.features and self.dice.random() < 0.3
        if early:  # the descriptor under way holds it alone
            self.emit(thread, f"vrelease {handle}")
            self.let_go(thread, buffer)

        def take(*_: object) -> None:
            taken, at, by = taker.new("v"), taker.new("b"), self.dice.choice(taker.threads)
            context = contexts[1]
            self.emit(by, f"vreceive {taken} {context.number} {channel} {context.device}")
            self.emit(by, f"vmap {at} {taken}")
            self.emit(by, f"look {at}")
            mapped = Buffer(self.private(by, context), at, "vunmap")
            if self.dice.random() < 0.5:
                self.emit(by, f"vrelease {taken}")
            if not early and self.dice.random() < 0.5:
                self.later(self.phase + 1, end, giver, taker)
            by.buffers.append(mapped)

        def end(*_: object) -> None:
            self.emit(thread, f"vrelease {handle}")
            self.let_go(thread, buffer)

        self.later(self.phase + 1, take, giver, taker)

    def share_pool(self, giver: Process, taker: Process) -> None:
        contexts = self.common(giver, taker)
        if contexts is None or self.counters.get("slots", 0) > 60:
            return
        if self.counters.get("channels", 0) > 28:
            return
        if giver.last < taker.last and "makers of pools killed" not in self.features:
            return
        thread, channel, slot = (
            self.dice.choice(giver.threads),
            self.next("channels"),
            self.next("slots"),
        )
        stream, number, pool = self.private(thread, contexts[0]), giver.new("b"), giver.new("p")
        kib = self.kib()
        self.emit(thread, f"pool {pool} {contexts[0].number} {contexts[0].device} 1")
        self.emit(thread, f"palloc {number} {stream.number} {pool} {kib}")
        self.emit(thread, f"fill {stream.number} {number} {self.dice.randrange(256)} 65536 1")
        self.emit(thread, f"ssync {stream.number}")
        self.emit(thread, f"psend {pool} {channel}")
        self.emit(thread, f"pgive {number} {slot}")

        def take(*_: object) -> None:
            theirs, taken, by = taker.new("p"), taker.new("b"), self.dice.choice(taker.threads)
            at = self.private(by, contexts[1])
            self.emit(by, f"preceive {theirs} {contexts[1].number} {channel}")
            self.emit(by, f"ptake {taken} {theirs} {slot} {kib}")
            self.emit(by, f"look {taken}")
            self.later(self.phase + 1, close, giver, taker, by, Buffer(at, taken, "afree"))

        def close(_: Process, __: Process, by: Thread, what: Buffer) -> None:
            self.emit(by, f"afree {what.stream.number} {what.number}")
            self.later(self.phase + 1, end, giver, taker)

        def end(*_: object) -> None:
            self.emit(thread, f"afree {stream.number} {number}")
            self.emit(thread, f"pdestroy {pool}")

        self.later(self.phase + 1, take, giver, taker)


def write(seed: int, features: frozenset[str] = FEATURES) -> str:
    """The script of this seed: always the same for the same features."""
    return Writer(seed, features).write()


def features(changes: str = "") -> frozenset[str]:
    """All that is not broken, or as `changes` say: "+uploads,-pools", or "all"."""
    chosen = set(FEATURES - BROKEN.keys())
    for change in filter(None, changes.split(",")):
        name = change.lstrip("+-")
        if name == "all":
            chosen = set(FEATURES)
        elif name == "none":
            chosen = set()
        elif name not in FEATURES:
            raise ValueError(f"no feature {name!r}; there are {', '.join(sorted(FEATURES))}")
        elif change.startswith("-"):
            chosen.discard(name)
        else:
            chosen.add(name)
    return frozenset(chosen)
