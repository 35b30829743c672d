"""Autoload: what `import torch` calls of Penstock, in every program on a machine that has both.

It must cost nothing that a program would notice, and must never raise: an error in an extension
makes `import torch` itself fail. So it only gives the device its name. Kernels are handed to torch
when the first tensor is made on the device, and cards are started by the first operation.
"""

from __future__ import annotations

import os

from penstock.card.names import VARIABLE

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

    name = torch._C._get_privateuse1_backend_name()
    if name != _UNNAMED:
        return f"the extension {name} of torch has taken the place for devices of others"
    other = _other_extension()
    if other is not None and not cards:
        return f"the extension {other} of torch may need the place for devices of others"
    from torch.utils import backend_registration

    from penstock.card.device import module, place

    backend_registration.rename_privateuse1_backend("penstock")
    torch._register_device_module("penstock", module)
    place.register_guard()
    if cards:
        place.take()
    return None


def _other_extension() -> str | None:
    from importlib.metadata import entry_points

    others = (one.name for one in entry_points(group="torch.backends") if one.name != "penstock")
    return next(others, None)
