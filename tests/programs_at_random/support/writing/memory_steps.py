"""Steps with memory of every family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs_at_random.support.writing.draft import Draft
from tests.programs_at_random.support.writing.entities import Buffer

if TYPE_CHECKING:
    from tests.programs_at_random.support.writing.entities import Thread


class MemorySteps(Draft):
    """Allocations, what is written into them, and their end."""

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
