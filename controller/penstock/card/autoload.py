"""Autoload: what `import torch` calls of Penstock, in every program on a machine that has both.

It must cost nothing that a program would notice, and must never raise: an error in an extension
makes `import torch` itself fail. So it only gives the device its name. Kernels are handed to torch
when the first tensor is made on the device, and cards are started by the first operation.
"""

from __future__ import annotations

import os

VARIABLE = "PENSTOCK_CARD"  # the cards of this program; "off": torch is left alone
FIRST_TORCH, END_TORCH = (2, 13), (2, 16)  # tested releases: from the first on, before the end
_UNNAMED = "privateuseone"
problem: str | None = None  # why the device cannot be used in this program


def load() -> None:
    """Gives torch the device "penstock". Never raises; `problem` says what is in the way."""
    global problem  # noqa: PLW0603 - a process has one device of this name
    try:
        problem = _load()
    except Exception as error:  # noqa: BLE001 - see above
        problem = f"{type(error).__name__}: {error}"


def _load() -> str | None:
    cards = os.environ.get(VARIABLE, "")
    if cards == "off":
        return f"${VARIABLE} is off"
    import torch

    name = torch._C._get_privateuse1_backend_name()  # noqa: SLF001
    if name != _UNNAMED:
        return f"the extension {name} of torch has taken the place for devices of others"
    other = _other_extension()
    if other is not None and not cards:
        return f"the extension {other} of torch may need the place for devices of others"
    from torch.utils import backend_registration

    from penstock.card.device import module

    backend_registration.rename_privateuse1_backend("penstock")
    torch._register_device_module("penstock", module)  # noqa: SLF001
    if cards:
        # torch.accelerator is this device from here on, also where there is a GPU.
        backend_registration.generate_methods_for_privateuse1_backend()
        _register_hooks()
    return None


def _other_extension() -> str | None:
    from importlib.metadata import entry_points

    others = (one.name for one in entry_points(group="torch.backends") if one.name != "penstock")
    return next(others, None)


def _register_hooks() -> None:
    from torch import _C

    from penstock.card.device import module

    class Hooks(_C._acc.PrivateUse1Hooks):  # type: ignore[misc]  # noqa: SLF001
        def is_built(self) -> bool:
            return True

        def is_available(self) -> bool:
            return module.is_available()

        def has_primary_context(self, device_index: int) -> bool:
            del device_index
            return module.is_initialized()

    class Guard(_C._acc.DeviceGuard):  # type: ignore[misc]  # noqa: SLF001
        def type_(self) -> object:
            return _C._autograd.DeviceType.PrivateUse1  # noqa: SLF001

    _kept.extend((Hooks(), Guard()))
    _C._acc.register_python_privateuseone_hook(_kept[0])  # noqa: SLF001
    _C._acc.register_python_privateuseone_device_guard(_kept[1])  # noqa: SLF001


_kept: list[object] = []  # torch does not hold them
