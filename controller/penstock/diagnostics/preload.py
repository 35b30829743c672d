"""Doctor checks of the preload: whether programs reach the shim, and whether CUDA calls work."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.diagnostics.finding import Finding, failure, ok, warning
from penstock.diagnostics.probe import Said, run_probe
from penstock_shim import paths
from penstock_shim.pages import DeviceLimit, Limits, QuotaWriter, UsagePage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.devices import Device, DriverLibraries

_DOORS = {
    "dlopen": "dlopen by name",
    "dlopen-plain": "dlopen without the .1",
    "dlopen-path": "dlopen by path",
    "dlmopen": "dlmopen",
    "linked": "linking",
}
_ANSWERS = {
    100: "CUDA_ERROR_NO_DEVICE: the driver was not found or has no device",
    802: "CUDA_ERROR_SYSTEM_NOT_READY: the shim could not use the tenant's pages",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: library and kernel module do not match",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: this device supports no library newer than "
    "its kernel module",
}
_REASONS = ("cannot be opened", "not in LD_LIBRARY_PATH", "no quota", "no tenant")
_UUID_OF_NONE = "GPU-00000000-0000-0000-0000-000000000000"


def look_at_preload(
    libraries: DriverLibraries,
    devices: Sequence[Device],
    environment: dict[str, str],
    *,
    first: Sequence[str] = (),
) -> list[Finding]:
    """Checks the preload by running probe programs as a tenant, in a temporary directory.

    `first` lists the libraries that this machine preloads before the shim.
    """
    try:
        preload = ":".join([*first, str(paths.so_path()), str(paths.nvml_so_path())])
    except FileNotFoundError as error:
        return [failure("shim", str(error), "install penstock with pip")]
    if any(character in preload for character in " \t"):
        preload = ""  # penstock run makes a link instead, so a finding would be misleading
    with tempfile.TemporaryDirectory(prefix="penstock-doctor-") as folder:
        _make_tenant(Path(folder), libraries, devices)
        inside = {
            **environment,
            "LD_PRELOAD": preload,
            "PENSTOCK_TENANT_DIR": folder,
            "PENSTOCK_LOG": "stderr",
        }
        arguments = ["doors", libraries.driver, libraries.management]
        said = run_probe(arguments, inside)
        linked = run_probe(arguments, inside, linked=True)
    found = [_doors("CUDA", "cuda", said, linked), _doors("NVML", "nvml", said, linked)]
    if found[0].status == "ok":
        found.append(_first_call(said, has_driver=bool(libraries.driver)))
    return found + _newer_drivers(said.log)


def _newer_drivers(log: str) -> list[Finding]:
    """Findings about a newer driver that programs use instead (CUDA's forward compatibility).

    The shim logs which driver it uses, and which drivers it ignores and why.
    """
    taken = re.search(r": (/.*), newer than this machine's$", log, re.MULTILINE)
    ignored = dict.fromkeys(re.findall(r"driver: (/.* is ignored: .*)$", log, re.MULTILINE))
    found = []
    if taken is not None:
        found.append(
            ok(
                "forward compatibility",
                f"programs with this LD_LIBRARY_PATH and loader cache use {taken[1]}, a newer "
                "driver than this machine's",
            )
        )
    if ignored:
        found.append(
            warning(
                "forward compatibility",
                "; ".join(ignored),
                "programs use the next driver that the loader would find, usually this "
                "machine's: remove the folder from LD_LIBRARY_PATH or ld.so.conf, or repair it",
            )
        )
    return found


def _make_tenant(folder: Path, libraries: DriverLibraries, devices: Sequence[Device]) -> None:
    """Creates the pages of a tenant that is granted all of the devices."""
    limits = tuple(
        DeviceLimit(uuid=device.uuid, memory_bytes=device.memory_bytes) for device in devices[:16]
    ) or (DeviceLimit(uuid=_UUID_OF_NONE, memory_bytes=1 << 30),)
    QuotaWriter.create(
        folder / "quota",
        Limits(devices=limits),
        tenant="doctor",
        driver_path=libraries.driver,
        nvml_path=libraries.management,
    ).close()
    UsagePage.create(folder / "usage").close()


def _doors(name: str, library: str, said: Said, linked: Said) -> Finding:
    """Checks that every way to load the library leads to the shim."""
    check = f"preload, {name}"
    seen = {**said.facts, (library, "linked"): linked.facts.get((library, "linked"), "")}
    missing = linked.ended if not linked.facts else ""
    wrong, right = [], []
    for door, words in _DOORS.items():
        answer = seen.get((library, door))
        if answer is None:
            continue
        if answer.startswith("shim "):
            right.append(words)
        else:
            wrong.append(f"{words}: {answer or missing or 'no answer'}")
    if wrong or not right:
        what = "; ".join(wrong) or said.ended or "the probe printed nothing"
        return failure(
            check,
            what,
            "check that nothing removes LD_PRELOAD or is preloaded before the shim: programs would "
            "bypass the quota that way",
        )
    return ok(check, f"the shim answers {', '.join(right)}")


def _first_call(said: Said, *, has_driver: bool) -> Finding:
    result = said.number("cuda", "init")
    if result == 0:
        return ok(
            "a tenant's first call", f"cuInit succeeds, {said.number('cuda', 'devices')} devices"
        )
    why = said.ended or _ANSWERS.get(result or 0, f"cuInit returns error {result}")
    said_why = [
        line.partition(": ")[2]
        for line in said.log.splitlines()
        if "penstock[" in line and any(word in line for word in _REASONS)
    ]
    detail = f"{why}; the shim says: {said_why[-1]}" if said_why else why
    advice = (
        "see the lines about driver and devices"
        if has_driver
        else "--simulate h200 needs no driver"
    )
    return failure("a tenant's first call", detail, advice)
