"""Host memory for released device memory: how much there is, and the check before a release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError, human_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.node.tenants.grant import Grant

LEFT_PARTS = 10  # a tenth of the machine's memory stays available
MEMINFO = Path("/proc/meminfo")


def most_host_memory() -> int:
    """The most that released memory may ever take of this machine, in bytes."""
    _, total = _available_and_total()
    return total - total // LEFT_PARTS


def check_host_memory(
    tenant: str, wanted_bytes: int, others: Iterable[Grant], bound_bytes: int | None
) -> None:
    """Checks that the host has room for a tenant's device memory.

    Args:
        tenant: The tenant's name.
        wanted_bytes: Its device memory.
        others: The other grants of the node, some of them released.
        bound_bytes: The bound for all tenants together; None: what the machine can spare.

    Raises:
        PenstockError: the host has too little memory; the error has the figures.
    """
    others = list(others)
    held = sum(one.host_bytes for one in others)
    # Memory that is about to come still counts as available.
    coming = sum(one.host_bytes for one in others if one.memory == "releasing")
    available, total = _available_and_total()
    spare = max(0, available - coming - total // LEFT_PARTS)
    bounded = ""
    if bound_bytes is not None:
        spare = min(spare, max(0, bound_bytes - held))
        bounded = f" of at most {human_memory(bound_bytes)} (penstock agent --host-memory)"
    if wanted_bytes > spare:
        raise PenstockError(
            f"the device memory of tenant {tenant!r} cannot be moved to the host",
            f"it uses {human_memory(wanted_bytes)}, and the host has room for "
            f"{human_memory(spare, down=True)}: {human_memory(available, down=True)} of its memory "
            f"are available, and suspended tenants hold {human_memory(held)}{bounded}",
            "resume or end another suspended tenant, or suspend without --release-memory",
            reason="not-enough-left",
        )


def _available_and_total() -> tuple[int, int]:
    """Available and total memory of the machine, in bytes."""
    figures = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    available, total = (int(figures[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    return available * 1024, total * 1024
