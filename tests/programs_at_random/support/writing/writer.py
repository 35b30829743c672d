"""Random programs, written as scripts for `player/`: valid, and without a deadlock by themselves.

Why no program can hang by itself: quiet points cut it into phases. In a *plain* phase, work waits
only for work that was launched before, by any thread. In an *entangled* phase, streams and kernels
also wait for work that is launched later, or at the same time by other threads: there each stream
belongs to one thread, nothing uses the legacy stream, nothing waits for a whole context or frees
memory, and all meetings stand in one order, with which each thread's order of launches agrees. In a
*calm* phase a thread may open a capture of mode GLOBAL; others then do nothing that it forbids.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tests.programs_at_random.support.writing.context_steps import ContextSteps
from tests.programs_at_random.support.writing.draft import MOST_QUEUES, MOST_WORDS, QUEUES
from tests.programs_at_random.support.writing.entangled_steps import EntangledSteps
from tests.programs_at_random.support.writing.entities import Stream, Words
from tests.programs_at_random.support.writing.features import FEATURES
from tests.programs_at_random.support.writing.graph_steps import GraphSteps
from tests.programs_at_random.support.writing.sharing import Sharing
from tests.programs_at_random.support.writing.stream_steps import StreamSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs_at_random.support.writing.entities import Process, Thread


class Writer(StreamSteps, Sharing, ContextSteps, GraphSteps, EntangledSteps):
    """Writes one program, phase by phase."""

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

    # ---- calm phases ----

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


def write(seed: int, features: frozenset[str] = FEATURES) -> str:
    """The script of this seed: always the same for the same features."""
    return Writer(seed, features).write()
