"""The objects of a random program: its processes and threads, and what they have made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
        """Streams that no other thread uses."""
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
    """A step to be taken in the first plain phase from `phase` on."""

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
