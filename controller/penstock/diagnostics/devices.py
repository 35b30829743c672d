"""Doctor checks of every accelerator: whether it is healthy, and whether its tool works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.devices.discovery import survey
from penstock.devices.inventory import KINDS, known
from penstock.diagnostics.finding import Finding, failure, ok, warning

if TYPE_CHECKING:
    from pathlib import Path

CHECK = "accelerators"


def look_at_devices(machine: Path | None) -> list[Finding]:
    """Checks the devices of every kind on this machine; `machine` is a simulated machine's file."""
    found = []
    for one in survey([kind for kind in KINDS if kind != "cpu"], machine=machine):
        if not one.devices:
            continue
        models = dict.fromkeys(device.model for device in one.devices)
        seen = f"{len(one.devices)} {one.kind}: {', '.join(models)}"
        if one.unavailable is not None:
            advice = one.unavailable.fix or "see penstock devices"
            found.append(warning(CHECK, f"{seen}; {one.unavailable.why}", advice))
            continue
        bad = [
            f"{device.id} is {health}"
            for device in one.devices
            if (health := known(device.health)) is not None and health.state != "ok"
        ]
        if bad:
            advice = "drain and reset them; the agent grants no more shares of them until then"
            found.append(failure(CHECK, f"{seen}; {'; '.join(bad)}", advice))
        else:
            found.append(ok(CHECK, seen))
    return found
