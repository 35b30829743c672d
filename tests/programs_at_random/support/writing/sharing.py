"""Memory, events and pools that go from process to process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs_at_random.support.writing.draft import LARGE_WORDS
from tests.programs_at_random.support.writing.entities import Buffer, Errand, Words
from tests.programs_at_random.support.writing.memory_steps import MemorySteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs_at_random.support.writing.entities import Context, Process, Thread


class Sharing(MemorySteps):
    """Plans what processes give each other: one gives in one phase, the other takes in a later."""

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
