"""Steps with graphs, captured or made node by node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs_at_random.support.writing.draft import Draft
from tests.programs_at_random.support.writing.entities import Stream

if TYPE_CHECKING:
    from tests.programs_at_random.support.writing.entities import Thread


class GraphSteps(Draft):
    """Makes graphs and launches them."""

    def capture(self, thread: Thread, mode: int) -> tuple[int, Stream, bool]:
        """Captures a graph from a stream of this thread alone.

        True: it writes into the stream's buffers.
        """
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
