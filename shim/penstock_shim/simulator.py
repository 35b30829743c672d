"""Simulated machines: creating one, reading what its devices did, and injecting faults.

A machine is one file, which `create_machine` makes from device profiles. The variables from
`environment` make the simulated `libcuda.so.1` and `libnvidia-ml.so.1` find it. Benchmarks measure
by `Machine.record`, which is what the devices themselves recorded, not what a shim counted.
"""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import paths
from ._machine import (
    Device,
    DeviceUsage,
    FaultKind,
    Machine,
    MachineError,
    MigInstance,
    ProcessRecord,
    RecordReader,
    Sample,
    put,
    text,
)
from ._native import ffi, lib
from .profiles import KernelRule, Profile, ProfileError, RatedTflops, load_profile, profile_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._native import CData

__all__ = [
    "Device",
    "DeviceUsage",
    "FaultKind",
    "KernelRule",
    "Machine",
    "MachineError",
    "MigInstance",
    "ProcessRecord",
    "Profile",
    "ProfileError",
    "RatedTflops",
    "RecordReader",
    "Sample",
    "Spec",
    "SpecError",
    "create_machine",
    "environment",
    "load_profile",
    "mig_instances",
    "parse_spec",
    "profile_names",
]

MAX_DEVICES = int(lib.SIM_MAX_DEVICES)


class SpecError(ValueError):
    """Error for an invalid machine specification; the message shows a valid one."""


@dataclass(frozen=True)
class Spec:
    """A machine specification: `count` devices, all of `profile`."""

    profile: Profile
    count: int


def parse_spec(text: str) -> Spec:
    """Parse ``PROFILE[,N]``: a profile's name or YAML file, and the number of devices (default 1).

    Raises:
        SpecError: the text has another form, or N is not between 1 and 16.
        ProfileError: the profile is unknown or invalid.
    """
    name, comma, number = text.partition(",")
    name, number = name.strip(), number.strip()
    example = "write PROFILE[,N], for example h200,2"
    if not name:
        raise SpecError(f"{text!r} has no device profile; {example}")
    if not comma:
        return Spec(load_profile(name), 1)
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise SpecError(f"{text!r}: {number!r} is not a number of devices; {example}")
    if not 1 <= int(number) <= MAX_DEVICES:
        raise SpecError(
            f"{text!r}: a machine has 1 to {MAX_DEVICES} devices, not {int(number)}; {example}"
        )
    return Spec(load_profile(name), int(number))


def create_machine(path: str | os.PathLike[str], spec: str | Spec, place: str = "") -> Machine:
    """Open the machine at `path`, and create it first if there is none.

    Machines with a different `place`, such as the name of a node, have devices with different
    UUIDs. An existing machine keeps its UUIDs.

    Several processes may call this at once. An existing machine is used as it is, with everything
    that it has recorded, provided that it has the devices that `spec` requests.

    Raises:
        SpecError, ProfileError: `spec` is invalid.
        MachineError: the file cannot be created or read, or is a machine with other devices.
    """
    wanted = parse_spec(spec) if isinstance(spec, str) else spec
    path = Path(path)
    is_there = path.exists()  # its disk may be full, so the one to compare with is made elsewhere
    beside = None if is_there else _folder(path)
    with tempfile.TemporaryDirectory(prefix=".machine-", dir=beside) as folder:
        # The machine is made elsewhere and then linked to its path, so that no process sees an
        # incomplete one.
        aside = Path(folder) / "machine"
        _make(aside, wanted, path, place)
        try:
            if not is_there:
                os.link(aside, path)
        except FileExistsError:
            pass
        except OSError as error:
            raise MachineError(f"cannot make the simulated machine {path}: {error}") from error
        with Machine(aside) as fresh:
            machine = Machine(path)
            if not machine.has_devices_of(fresh):
                found = machine.summary()
                machine.close()
                raise MachineError(
                    f"{path} is a simulated machine of {found}, not of {fresh.summary()}; use "
                    "another path, or remove the file when no process uses it any more"
                )
    return machine


MIG_MEMORY_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}  # of a device's memory, by compute slices


def mig_instances(device: Device, words: str) -> list[MigInstance]:
    """Parse MIG instances of `device`: ``1g,1g,3g`` has 1, 1 and 3 of the seven compute slices.

    Memory is divided into eighths, as on devices with MIG. SM counts are estimates.

    Raises:
        SpecError: there is no such size, or the instances do not fit on one device.
    """
    found = []
    for word in (part.strip() for part in words.split(",")):
        match = re.fullmatch(r"([1-7])g", word)
        if match is None or int(match[1]) not in MIG_MEMORY_EIGHTHS:
            raise SpecError(f"{word!r} is not a MIG size (valid: 1g, 2g, 3g, 4g and 7g)")
        slices = int(match[1])
        memory_bytes = device.memory_bytes * MIG_MEMORY_EIGHTHS[slices] // 8
        sm_count = device.sm_count if slices == 7 else device.sm_count // 8 * slices
        profile = f"{slices}g.{round(memory_bytes / 2**30)}gb"
        found.append(MigInstance(profile, memory_bytes, slices, sm_count))
    if (
        sum(one.slices for one in found) > 7
        or sum(MIG_MEMORY_EIGHTHS[one.slices] for one in found) > 8
    ):
        raise SpecError(
            f"{words!r} do not fit on one device, which has 7 compute slices and 8 memory slices"
        )
    return found


def environment(
    machine_path: str | os.PathLike[str], tag: str = "", base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment variables that put a child process on the simulated machine.

    `tag` labels the process in the device's record. `base` is the environment that the child would
    otherwise have, by default that of this process. Its library path is kept after the simulated
    driver's.
    """
    inherited = (os.environ if base is None else base).get("LD_LIBRARY_PATH", "")
    libraries = dict.fromkeys([str(paths.sim_dir()), *filter(None, inherited.split(":"))])
    variables = {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "PENSTOCK_SIM_MACHINE": str(Path(machine_path).absolute()),
    }
    if tag:
        variables["PENSTOCK_SIM_TAG"] = tag
    return variables


def _folder(path: Path) -> Path:
    """Return the folder of the machine at `path`.

    Raises:
        MachineError: the folder does not exist.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise MachineError(f"cannot make the simulated machine {path}: there is no folder {folder}")
    return folder


def _make(aside: Path, spec: Spec, path: Path, place: str) -> None:
    """Create the machine in the file `aside`, which the caller then links to `path`."""
    profiles = ffi.new("sim_profile[]", spec.count)
    for index in range(spec.count):
        _fill(profiles[index], spec.profile)
        profiles[index].place = zlib.crc32(place.encode())  # 0 for an empty place
    error = ffi.new("char[]", lib.SIM_ERROR_BYTES)
    if lib.sim_machine_create(os.fsencode(aside), profiles, spec.count, error) < 0:
        # The error text names the temporary file.
        reason = text(error).rpartition(f"{str(aside)[:120]}: ")[2]
        if reason.startswith("a profile"):
            raise MachineError(f"cannot create a machine from {spec.profile.path}: {reason}")
        raise MachineError(f"cannot make the simulated machine {path}: {reason}")


def _fill(raw: CData, profile: Profile) -> None:
    """Copy `profile` into a `sim_profile`. A missing value stays 0, which means the default."""
    put(raw, "name", profile.name, lib.SIM_NAME_BYTES)
    put(raw, "source", profile.source, lib.SIM_NAME_BYTES)
    raw.compute_major, raw.compute_minor = profile.compute_capability
    raw.tflops = profile.rated_tflops.fp16
    for field, value in profile.machine_fields().items():
        setattr(raw, field, value)
    for index, rule in enumerate(profile.kernels):
        put(raw.rules[index], "pattern", rule.pattern, lib.SIM_NAME_BYTES)
        raw.rules[index].duration_ns = rule.duration_ns
        raw.rules[index].parameter = -1 if rule.parameter is None else rule.parameter
