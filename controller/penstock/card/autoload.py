"""Autoload: what torch and JAX call of Penstock, in every program on a machine that has both.

It must cost nothing that a program would notice, and must never raise: an error in an extension
makes `import torch` itself fail. A program without cards keeps torch as it is, because torch has
one place for devices of others, and the program may want it for another one. A program with cards
gets the device's name here. Kernels are handed to torch when the first tensor is made on the
device, and cards are started by the first operation.
"""

from __future__ import annotations

import os

from penstock.card.names import AS_VARIABLE, FIRST_TORCH, JAX_VARIABLE, VARIABLE, cards_text

_NAME = "penstock"
_GROUP = "torch.backends"  # of entry points: the extensions that `import torch` loads
_UNNAMED = "privateuseone"
problem: str | None = "it was not loaded"  # why the device cannot be used in this program


def load() -> None:
    """Gives torch the device "penstock" if this program has cards; may be called again.

    It never raises: `problem` says what is in the way, and a program with cards is warned.
    """
    global problem  # noqa: PLW0603 - a process has one device of this name
    try:
        problem = _load()
    except Exception as error:  # noqa: BLE001 - see above
        problem = f"{type(error).__name__}: {error}"
    if problem is not None and cards_text():
        _warn(problem)


def initialize() -> None:
    """What JAX calls when it starts: its jitted functions run on the cards from now on.

    Only in a program whose starter says that the cards stand for its one device: a JAX program
    names none. It never raises: the program is warned if JAX computes on the CPU.
    """
    if not cards_text() or os.environ.get(AS_VARIABLE) != "cuda" or not _wants_jax():
        return
    try:
        from penstock.card.frameworks import jax as adapter

        if problem is None:
            adapter.install()
    except Exception as error:  # noqa: BLE001 - see above
        _warn(f"{type(error).__name__}: {error}")


def _wants_jax() -> bool:
    return os.environ.get(JAX_VARIABLE) != "off"


def _load() -> str | None:
    if not cards_text():
        return f"${VARIABLE} is {os.environ.get(VARIABLE) or 'not set'}"
    import torch

    name = torch._C._get_privateuse1_backend_name()
    if name == _NAME:
        return None
    if name != _UNNAMED:
        return (
            f"the extension {name} of torch has the place for devices of others; to have the card "
            "instead, set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and call penstock.card.load()"
        )
    if _release(torch.__version__) < FIRST_TORCH:
        first = ".".join(map(str, FIRST_TORCH))
        return f"torch {torch.__version__} is too old: the device needs {first} or newer"
    from torch.utils import backend_registration

    from penstock.card.device import first_use, module, place

    _hold_off_others()
    backend_registration.rename_privateuse1_backend(_NAME)
    torch._register_device_module(_NAME, module)
    place.register_guard()
    place.take()
    first_use.prepare()
    if os.environ.get(AS_VARIABLE) == "cuda":
        from penstock.card.device import cuda_name

        cuda_name.take_name()
    return None


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _hold_off_others() -> None:
    """Keeps torch from loading extensions after this one: it has one place for their devices.

    Such an extension would raise, so that `import torch` fails, or put its kernels in place of
    the device's.
    """
    from importlib.metadata import EntryPoint

    former = EntryPoint.load

    def load_unless_of_torch(self: EntryPoint) -> object:
        if self.group == _GROUP and self.name != _NAME:
            return lambda: None
        return former(self)

    EntryPoint.load = load_unless_of_torch  # type: ignore[method-assign]


def _warn(text: str) -> None:
    import contextlib
    import warnings

    with contextlib.suppress(Warning):  # where warnings are errors
        warnings.warn(f"device penstock cannot be used: {text}", RuntimeWarning, stacklevel=2)
