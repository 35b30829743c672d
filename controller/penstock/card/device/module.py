"""`torch.penstock`: what torch and programs ask the module of a device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device import memory, random
from penstock.card.names import cards_text

# Nothing else of Penstock is imported before the device is used: programs that never use it load
# this module, too.
if TYPE_CHECKING:
    from penstock.card.device.session import Session


# The generator is there from the start: torch.utils.checkpoint keeps the state of a device's
# generator only if the device's module says that it is initialized.
_initialized = True


def _lazy_init() -> None:
    """Called by torch before it makes the first tensor on the device. Raises `PenstockError`."""
    from penstock.card.device.start import start

    start()


def _session() -> Session:
    from penstock.card.device.start import session

    return session()


def is_available() -> bool:
    """Whether this program has a card."""
    return bool(cards_text())


def is_initialized() -> bool:
    """Whether the cards are started."""
    start = sys.modules.get("penstock.card.device.start")
    return start is not None and start.is_started()


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """1 if this program has a card, however many cards it is made of; otherwise 0."""
    return int(is_available())


def current_device() -> int:
    """Always 0."""
    return 0


def set_device(device: Any) -> None:
    """Does nothing, as there is one device. Raises `ValueError` for another than 0."""
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if index > 0:
        raise ValueError(f"there is no device penstock:{index}: all cards are penstock:0")


class device:  # noqa: N801 - as torch.cuda.device
    """A context in which the device is the current one, which it always is."""

    def __init__(self, device: Any) -> None:
        self.idx = 0
        set_device(device if device is not None else 0)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def get_device_name(device: Any = None) -> str:
    """What the device is made of, such as "2 cards: gpu 0 of node a, npu 0 of node b"."""
    del device
    return _session().description()


def synchronize(device: Any = None) -> None:
    """Waits until all cards have done all work. Raises `CardError`."""
    del device
    if is_initialized():
        _session().synchronize()


def manual_seed(seed: int) -> None:
    """Seeds the device's default generator."""
    random.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """The same: there is one device. torch.manual_seed calls it."""
    manual_seed(seed)


def seed() -> None:
    """Seeds the default generator by chance."""
    random.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """The seed of the default generator."""
    return random.default_generator.initial_seed()


def get_rng_state(device: Any = "penstock") -> torch.Tensor:
    """The state of the default generator, a tensor of bytes on the CPU."""
    del device
    return random.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "penstock") -> None:
    """Sets the state of the default generator."""
    del device
    random.default_generator.set_state(new_state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that torch.autocast("penstock") may work in."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always: each kind of card computes in it, some by emulation, which torch counts as well."""
    del including_emulation
    return True


memory_allocated = memory.memory_allocated
max_memory_allocated = memory.max_memory_allocated
mem_get_info = memory.mem_get_info
memory_by_card = memory.memory_by_card


def set_sharding(mode: str) -> None:
    """Says whether the parameters of modules are sharded over the cards: "off", "auto" or "on".

    Raises:
        ValueError: it is none of these.
        PenstockError: the program has no card.
    """
    _session().sharding.set_mode(mode)


def get_sharding() -> tuple[str, bool]:
    """The mode of sharding, and whether parameters are sharded now. Raises `PenstockError`."""
    sharding = _session().sharding
    return sharding.mode, sharding.is_on


def empty_cache() -> None:
    """Sends the cards what they may forget. Raises `CardError`."""
    if is_initialized():
        _session().stream.flush()
