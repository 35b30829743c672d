"""Steps with modules, limits and contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs_at_random.support.writing.draft import Draft

if TYPE_CHECKING:
    from tests.programs_at_random.support.writing.entities import Thread


class ContextSteps(Draft):
    """Code, limits and contexts that come and go."""

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
        """A context that is made and destroyed, or a primary one that is retained for a while."""
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
