"""A program that loads, uses and unloads images of random shapes."""

from __future__ import annotations

import contextlib
import random

from tests.memory.support.cuda_calls import (
    MIB,
    CudaError,
    begin,
    charged,
    cu,
    ok,
)
from tests.memory.support.image_memory import launch, library, sized
from tests.memory.support.images import Entry, cubin, fat, ptx
from tests.memory.support.other_device import HERE, THERE, agree, current, on_the_device


class Images:
    """Loads, uses and unloads images of random shapes in contexts of two devices, in any order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311  # a test's dice
        self.contexts = [begin(THERE), begin(HERE)]
        self.modules: list[tuple[object, object]] = []  # context, module
        self.libraries: list[object] = []

    def image(self) -> bytes:
        size, variables = (
            self.dice.choice((100, MIB, 3 * MIB)),
            self.dice.choice((0, 4096, 4 * MIB)),
        )
        local = {"nothing": self.dice.choice((0, 0, 1500, 3000))}
        kernels = {"nothing": size, "other": self.dice.choice((64, 5 * MIB))}
        if self.dice.random() < 0.2:
            return ptx(f".visible .global .align 8 .b8 blob[{variables + 1}];", local=1200)
        one = cubin(kernels, local=local, variables=variables, managed=self.dice.choice((0, 0, 8)))
        return fat(sized(7, 80), Entry(90, one), sized(9, 100))

    def step(self) -> None:
        context = self.dice.choice(self.contexts)
        with current(context):
            action = self.dice.randrange(8)
            if action == 0:
                self.modules.append((context, ok(cu.cuModuleLoadData(self.image()))))
            elif action == 1:
                self.libraries.append(library(self.image()))
            elif action in (2, 3) and self.modules:
                context, module = self.dice.choice(self.modules)
                with current(context):
                    ok(launch(ok(cu.cuModuleGetFunction(module, b"nothing"))))
            elif action in (4, 5) and self.libraries:
                kernel = ok(cu.cuLibraryGetKernel(self.dice.choice(self.libraries), b"nothing"))
                ok(launch(kernel))
            elif action == 6 and self.modules:
                context, module = self.modules.pop(self.dice.randrange(len(self.modules)))
                with current(context):
                    ok(cu.cuModuleUnload(module))
            elif action == 7 and self.libraries:
                one = self.libraries.pop(self.dice.randrange(len(self.libraries)))
                ok(cu.cuLibraryUnload(one))

    def check(self) -> None:
        """The charge is never less than the device's record; unused parts and tables add some."""
        most = (len(self.modules) + len(self.libraries)) * 10 * MIB
        for device in (HERE, THERE):
            excess = charged(device) - on_the_device(device)
            assert 0 <= excess <= most, (device, excess)


def random_images(seed: str) -> None:
    images = Images(int(seed))
    for _ in range(60):
        with contextlib.suppress(CudaError):
            images.step()
        images.check()
    for context, module in images.modules:
        with current(context):
            ok(cu.cuModuleUnload(module))
    for one in images.libraries:
        ok(cu.cuLibraryUnload(one))
    agree()
    for device in (HERE, THERE):
        ok(cu.cuDevicePrimaryCtxReset(device))
    assert charged(HERE) == charged(THERE) == 0
