"""Doctor checks of the driver: its version, and whether it has the same functions as the shim."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.diagnostics.finding import Finding, failure, ok, warning
from penstock.diagnostics.probe import run_probe
from penstock.node.launch.mps import VARIABLE, has_control_pipe, pipe_directory
from penstock.node.launch.program import NotElfError, exported_names
from penstock_shim import paths

if TYPE_CHECKING:
    from penstock.devices import DriverLibraries

USE_SIMULATION = "install the NVIDIA driver, or use the simulated GPU: --simulate h200"
NO_DEVICE_ADVICE = (
    "the library is present, but a GPU, its kernel module or /dev/nvidia* is missing: see the line "
    "about the module, or use --simulate h200"
)
_NO_DEVICE = 100
_SHOWN = 6
_MUST_HAVE = ("cuInit", "cuDriverGetVersion")
_LOADED_MODULE = Path("/sys/module/nvidia/version")
_MPS_PROCESSES = (b"nvidia-cuda-mps-control", b"nvidia-cuda-mps-server")


def look_at_driver(
    libraries: DriverLibraries, environment: dict[str, str], *, simulated: bool
) -> list[Finding]:
    """Checks the driver's CUDA and NVML libraries, without the shim."""
    said = run_probe(["driver", libraries.driver, libraries.management], environment)
    if not libraries.driver:
        found = [failure("driver", "no libcuda.so.1 on this machine", USE_SIMULATION)]
    elif said.facts.get(("cuda", "open")) != "yes":
        why = said.facts.get(("cuda", "open"), said.ended)
        found = [failure("driver", f"{libraries.driver} cannot be used: {why}", USE_SIMULATION)]
    else:
        version = said.number("cuda", "version")
        kind = "simulated, " if simulated else ""
        found = [
            ok("driver", f"{kind}CUDA {_cuda(version)}, {libraries.driver}"),
            _headers(version),
            *_names(Path(libraries.driver)),
            _init(said.number("cuda", "init"), said.number("cuda", "devices"), said.ended),
            *_integrated(said.number("cuda", "integrated")),
        ]
    found.append(_nvml(libraries.management, said.facts, said.number("nvml", "init")))
    if said.number("nvml", "mig"):
        found.append(ok("MIG", f"on for {said.number('nvml', 'mig')} devices: grant its instances"))
    if not simulated:
        found.append(_module())
    found.append(_mps(said.number("cuda", "mps"), is_running=not simulated and _is_mps_running()))
    return found


def _cuda(version: int | None) -> str:
    return "of unknown version" if not version else f"{version // 1000}.{version % 1000 // 10}"


def _headers(version: int | None) -> Finding:
    headers = int(json.loads(paths.coverage_table().read_text())["headers"]["cuda"])
    seen = f"shim built from CUDA {_cuda(headers)}, driver {_cuda(version)}"
    if version and version // 10 > headers // 10:
        return warning(
            "headers",
            f"{seen}: the driver is newer",
            "use a newer release of Penstock; functions that only the driver has are forwarded if "
            "harmless, else refused (see penstock shim coverage)",
        )
    return ok("headers", seen)


def _names(library: Path) -> list[Finding]:
    try:
        theirs = {name for name in exported_names(library) if re.match(r"cu[A-Z]", name)}
        ours = {name for name in exported_names(paths.so_path()) if re.match(r"cu[A-Z]", name)}
    except NotElfError as error:
        return [warning("names", str(error), "check whether that file is the driver's library")]
    absent = [name for name in _MUST_HAVE if name not in theirs]
    if absent:
        return [
            failure("names", f"{library} lacks {', '.join(absent)}: not a driver", USE_SIMULATION)
        ]
    found = []
    more, fewer = sorted(theirs - ours), sorted(ours - theirs)
    if more:
        found.append(
            warning(
                "names",
                f"the driver has {len(more)} names that the shim lacks: {_some(more)}",
                "use a newer release of Penstock: a program linked to one of them cannot start in "
                "a tenant",
            )
        )
        found += _refused(more)
    seen = f"{len(theirs & ours)} names in driver and shim"
    if fewer:
        lacking = f"{len(fewer)} that this driver lacks ({_some(fewer)})"
        seen += f"; {lacking} answer CUDA_ERROR_NOT_SUPPORTED"
    return [*found, ok("names", seen)]


def _refused(names: list[str]) -> list[Finding]:
    """A warning about functions that cuGetProcAddress withholds, by the rules of `unknown.c`."""
    table = json.loads(paths.coverage_table().read_text())
    hooked = {_base(name) for name, (kind, _) in table["cuda"].items() if kind != "forwarded"}

    def is_kept_back(name: str) -> bool:
        parts = [part for part in table["risky"] if part in name]
        return _base(name) in hooked or any("Get" in part or "Get" not in name for part in parts)

    refused = [name for name in names if is_kept_back(name)]
    if not refused:
        return []
    return [
        warning(
            "names kept back",
            f'cuGetProcAddress answers "not found" for {len(refused)}, which may take memory or '
            f"time: {_some(refused)}",
            "a CUDA runtime as new as the driver may not start in a tenant: use a newer release of "
            "Penstock, or a program of an older CUDA; allowUnknown in a policy forwards them, "
            "uncharged",
        )
    ]


def _base(name: str) -> str:
    """The function's name without its version and per-thread suffix."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _init(result: int | None, devices: int | None, ended: str) -> Finding:
    if result == 0:
        return ok("devices", f"cuInit succeeds, {devices or 0} devices")
    if result == _NO_DEVICE:
        return failure("devices", "cuInit says that there is no device", NO_DEVICE_ADVICE)
    seen = ended or f"cuInit returns error {result}"
    advice = "see dmesg and nvidia-smi: library and kernel module must be of one version"
    return failure("devices", f"the driver does not start: {seen}", advice)


def _nvml(path: str, facts: object, result: int | None) -> Finding:
    said = facts if isinstance(facts, dict) else {}
    if not path or said.get(("nvml", "open")) != "yes":
        why = said.get(("nvml", "open"), "not found")
        return warning(
            "NVML",
            f"{path or 'libnvidia-ml.so.1'}: {why}",
            "install it: without it penstock cannot list devices, and nvidia-smi and nvitop fail",
        )
    if result != 0:
        return warning(
            "NVML", f"{path}: nvmlInit returns error {result}", "see nvidia-smi for the reason"
        )
    version, driver = said.get(("nvml", "version"), "?"), said.get(("nvml", "driver"), "?")
    return ok("NVML", f"{version}, driver {driver}, {path}")


def _module() -> Finding:
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    closed = [str(node) for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    try:
        version = _LOADED_MODULE.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        version = ""
    if not version and not nodes:
        return warning(
            "kernel module",
            "not seen, and no /dev/nvidia*",
            "load it, or give the container the GPU",
        )
    if closed:
        return failure(
            "kernel module", f"no access to {', '.join(closed)}", "ask to join its group"
        )
    return ok("kernel module", f"{version or 'version not known'}, {len(nodes)} device nodes")


def _integrated(devices: int | None) -> list[Finding]:
    if not devices:
        return []
    return [
        failure(
            "integrated devices",
            f"{devices}: they share the host's memory (GB10, Jetson)",
            "use a machine whose devices have their own memory: a quota would not hold, because "
            "host memory that a program allocates is device memory there",
        )
    ]


def _mps(devices: int | None, *, is_running: bool) -> Finding:
    """Finding about MPS. `devices` is how many MPS clients share, or None if not reported."""
    pipe = pipe_directory()
    if devices or (devices is None and is_running and has_control_pipe()):
        return warning(
            "MPS",
            f"programs are its clients, {pipe}" + (f", on {devices} devices" if devices else ""),
            "memory quotas hold; a quota below all of a device's time cannot be enforced where "
            "kernels of several programs overlap, and cuInit returns CUDA_ERROR_NOT_SUPPORTED: "
            "grant all of it, end MPS (echo quit | nvidia-cuda-mps-control), or name an empty "
            "directory in CUDA_MPS_PIPE_DIRECTORY",
        )
    if not is_running and VARIABLE not in os.environ:
        return ok("MPS", "not running")
    there = f"{pipe} exists" if pipe.exists() else f"{pipe} does not exist"
    seen = f"running, but {there}" if is_running else f"not running, {there}"
    if is_running and pipe.exists():
        seen = f"running, {pipe} exists, but programs are not its clients"
    advice = "a wrong CUDA_MPS_PIPE_DIRECTORY silently means no MPS: unset it or correct it"
    return warning("MPS", seen, advice)


def _is_mps_running() -> bool:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if any(name in command for name in _MPS_PROCESSES):
                return True
        except OSError:
            continue
    return False
