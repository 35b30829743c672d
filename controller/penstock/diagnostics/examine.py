"""All doctor checks in order; if there is no driver, everything else is still checked."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices import DriverLibraries, open_devices
from penstock.diagnostics.agent import look_at_agent
from penstock.diagnostics.devices import look_at_devices
from penstock.diagnostics.driver import look_at_driver
from penstock.diagnostics.finding import Finding, failure, ok, warning
from penstock.diagnostics.machine import look_at_machine
from penstock.diagnostics.preload import look_at_preload
from penstock.diagnostics.probe import run_probe
from penstock.diagnostics.state import look_at_state
from penstock.model import PenstockError
from penstock.node.launch.program import find_program, obstacles
from penstock.node.tenants.simulated_machines import simulated_machine
from penstock.node.tenants.state import State
from penstock.node.tenants.tenant_processes import MACHINE_VARIABLE, TENANT_VARIABLE
from penstock_shim import paths
from penstock_shim.simulator import MachineError

if TYPE_CHECKING:
    from penstock.devices import DeviceBackend

NO_MACHINE = "programs find no device there: restart the agent, or penstock simulate"


def examine(
    *, simulate: str | None = None, state_dir: Path | None = None, command: str | None = None
) -> list[Finding]:
    """Runs all checks. `command` is a program that is to run under a quota.

    Raises:
        PenstockError: the state directory cannot be opened.
        SpecError, ProfileError: `simulate` is invalid, or names no known profile.
    """
    found = look_at_machine()
    agent = look_at_agent(state_dir)
    found += [_tenant(), *look_at_state(state_dir, agent.directory), *agent.findings]
    usable = not any(f.check == "state directory" and f.status == "failure" for f in found)
    source: DeviceBackend | None = None
    if simulate is not None and usable:
        source = simulated_machine(State.open(state_dir), simulate)
    elif simulate is None:
        try:
            source = open_devices(None if os.environ.get(MACHINE_VARIABLE) else agent.machine)
        except PenstockError:
            source = None  # the findings about the driver give the reason
        except MachineError as error:
            found.append(failure("simulated machine", str(error), NO_MACHINE))
            return found
    libraries = source.libraries() if source else DriverLibraries("", "")
    environment = source.environment("doctor") if source else {}
    if not libraries.driver:
        libraries = _search(libraries, environment)
    simulated = source is not None and source.machine is not None
    found += look_at_driver(libraries, environment, simulated=simulated)
    found += look_at_devices(source.machine if source else None)
    found += look_at_preload(libraries, source.devices() if source else [], environment)
    if command is not None:
        found += _program(command)
    return found


def _tenant() -> Finding:
    if os.environ.get(TENANT_VARIABLE):
        return warning(
            "this shell",
            f"is inside a tenant ({os.environ[TENANT_VARIABLE]})",
            "these checks see the tenant's view; run the doctor outside it to see the machine",
        )
    return ok("this shell", "is not inside a tenant")


def _search(known: DriverLibraries, environment: dict[str, str]) -> DriverLibraries:
    """The driver libraries that the shim's own search finds, taken from the shim's log."""
    said = run_probe(
        ["doors", "", ""],
        {
            **environment,
            "LD_PRELOAD": f"{paths.so_path()}:{paths.nvml_so_path()}",
            "PENSTOCK_LOG": "stderr",
        },
    )
    match = re.search(r"libcuda\.so\.1: (/.*)$", said.log, re.MULTILINE)
    if match is None:
        return known
    beside = Path(match[1]).with_name("libnvidia-ml.so.1")
    return DriverLibraries(match[1], known.management or (str(beside) if beside.exists() else ""))


def _program(command: str) -> list[Finding]:
    path = find_program(command)
    if path is None:
        return [failure("program", f"{command!r} is not found", "check its name and PATH")]
    found = [
        (failure if one.fatal else warning)("program", one.what, one.advice)
        for one in obstacles(path)
    ]
    return found or [ok("program", f"{path} can be preloaded")]
