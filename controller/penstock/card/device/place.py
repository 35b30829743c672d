"""The device's place among torch's: PrivateUse1, of which a process has one."""

from __future__ import annotations

import itertools

_kept: list[object] = []  # torch does not hold what is registered
# Errors of hooks in backward, on their way to who called it: see `register_guard`.
errors_of_hooks: list[BaseException] = []


def take() -> None:
    """Makes the device torch's accelerator, also where there is a GPU; tensors get .penstock()."""
    from torch.utils import backend_registration

    backend_registration.generate_methods_for_privateuse1_backend()
    _register_hooks()


def register_guard() -> None:
    """Tells torch that the device exists. Without it, torch says that it was built without it.

    When a hook raises in backward, torch asks for the type of the device while it leaves the hook,
    with the error still set in Python. A function that returns then is an error in itself, and
    torch would end the process. So the error is taken out, and raised again by who called backward
    (`patches`).
    """
    from torch import _C

    kind = _C._autograd.DeviceType.PrivateUse1
    next_kind = itertools.repeat(kind).__next__  # raises SystemError while an error is set

    class Guard(_C._acc.DeviceGuard):  # type: ignore[misc]
        def type_(self) -> object:
            try:
                return next_kind()
            except SystemError as error:
                if error.__cause__ is not None:
                    errors_of_hooks.append(error.__cause__)
                return kind

    _kept.append(Guard())
    _C._acc.register_python_privateuseone_device_guard(_kept[0])


def _register_hooks() -> None:
    from torch import _C

    from penstock.card.device import module

    class Hooks(_C._acc.PrivateUse1Hooks):  # type: ignore[misc]
        def is_built(self) -> bool:
            return True

        def is_available(self) -> bool:
            return module.is_available()

        def has_primary_context(self, device_index: int) -> bool:
            del device_index
            return module.is_initialized()

    _kept.append(Hooks())
    _C._acc.register_python_privateuseone_hook(_kept[1])
