"""Steps with kernels, events, host functions and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs_at_random.support.writing.draft import Draft
from tests.programs_at_random.support.writing.entities import Event

if TYPE_CHECKING:
    from tests.programs_at_random.support.writing.entities import Context, Thread


class StreamSteps(Draft):
    """Work in streams, and every way to wait for it."""

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
        """Another thread waits until this one has come here."""
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
