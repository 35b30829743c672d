"""Steps of entangled phases, in which streams and kernels wait for what is launched later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs_at_random.support.writing.draft import (
    MOST_QUEUES,
    MOST_STREAMS,
    MOST_WORDS,
    Draft,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs_at_random.support.writing.entities import Context, Process, Stream, Thread


class EntangledSteps(Draft):
    """Meetings of streams, and work beside them."""

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
        """A step without a wait for others, on the thread's own streams other than `but`."""
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
        """A stream of this thread and another stream, of any thread, wait for each other."""
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
        """The numbers of some words in both processes, and two unused words of these."""
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
