"""Builds a tenant request from command-line options, for every command that starts a tenant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.say import say

if TYPE_CHECKING:
    from penstock.devices import DeviceBackend
    from penstock.model.terms import Mode
    from penstock.node.admission.admit import Request
    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.state import State
    from penstock.policy import LoadedPolicy


def refuse_inside_a_tenant() -> None:
    """Raises `PenstockError` if this process already runs under a quota."""
    from penstock.model import PenstockError
    from penstock.node.tenants.tenant_processes import TENANT_VARIABLE

    if os.environ.get(TENANT_VARIABLE):
        raise PenstockError(
            "this is already a tenant",
            f"${TENANT_VARIABLE} is {os.environ[TENANT_VARIABLE]}, and quotas do not nest",
            "run it outside the tenant, or change this tenant with penstock quota set",
        )


def open_source(state: State, simulate: str | None, place: str = "") -> DeviceBackend:
    """The simulated machine if `simulate` or the environment names one, else the real devices.

    Simulated devices with different values of `place` have different UUIDs.

    Raises:
        PenstockError: the devices cannot be opened.
    """
    if simulate is not None:
        from penstock.node.tenants.simulated_machines import simulated_machine

        return simulated_machine(state, simulate, place)
    from penstock.devices import open_devices

    return open_devices()


def policy_of(file: Path, command: str) -> LoadedPolicy:
    """The policy in `file` for this command and user. Raises `PenstockError`."""
    from penstock.node.admission.admit import user_name
    from penstock.policy import load_files, policy_for_command

    return policy_for_command(load_files([file]), command, user_name(), os.getuid())


POLICIES = Path("/etc/penstock/policies")  # the node's policies; see `chosen_policy`


def chosen_policy(
    file: Path | None, command: str, memory: str | None, cores: str | None
) -> LoadedPolicy | None:
    """The policy in `file`; without a file or a complete quota, the node's policy for the command.

    The node's policies are in $PENSTOCK_POLICIES or /etc/penstock/policies. Returns None if none of
    them matches.

    Raises:
        PenstockError: a policy cannot be read, several match, or the one in `file` does not.
    """
    if file is not None:
        return policy_of(file, command)
    folder = Path(os.environ.get("PENSTOCK_POLICIES") or POLICIES)
    if (memory is not None and cores is not None) or not folder.is_dir():
        return None
    from penstock.node.admission.admit import user_name
    from penstock.policy import load_files, policy_for_command
    from penstock.policy.match import matches_command

    user, uid = user_name(), os.getuid()
    loaded = load_files(sorted(folder.glob("*.yaml")))
    found = [p for p in loaded if matches_command(p.policy.spec.selector, command, user, uid)]
    return policy_for_command(found, command, user, uid) if found else None


def request_of(
    command: list[str],
    memory: str | None,
    cores: str | None,
    devices: list[str],
    mode: Mode | None,
    loaded: LoadedPolicy | None,
    name: str | None,
    oversubscribe: bool,
    *,
    all_by_default: bool = False,
) -> Request:
    """Builds a request from options, policy and defaults, in this order of precedence.

    With `all_by_default`, a limit that is not given defaults to everything that is free.

    Raises:
        PenstockError: a limit is missing.
    """
    from penstock.model import PenstockError, parse_cores, parse_memory
    from penstock.node.admission.admit import Request
    from penstock.policy.resolve import Settings, resolve

    spec = loaded.policy.spec if loaded else None
    options = Settings(mode=mode)
    policy = Settings.of_policy(spec, str(loaded)) if spec else Settings()
    limits = spec.limits if spec else None
    memory_bytes = [limits.memory] if limits and limits.memory is not None else None
    permille = [limits.cores] if limits and limits.cores is not None else None
    if memory is not None:
        memory_bytes = [parse_memory(figure) for figure in memory.split(",")]
    if cores is not None:
        permille = [parse_cores(figure) for figure in cores.split(",")]
    tflops = limits.tflops if limits and permille is None else None
    missing = [
        option
        for option, given in (("--memory 8Gi", memory_bytes), ("--cores 30", permille or tflops))
        if given is None
    ]
    if missing and not all_by_default:
        where = f"neither given nor in policy {loaded}" if loaded else "no policy is given"
        fix = f"add {' and '.join(missing)} (cores are percent of one device)"
        raise PenstockError("a quota needs memory and cores", where, fix)
    return Request(
        command=command,
        memory_bytes=memory_bytes,
        cores_permille=permille,
        tflops=tflops,
        devices=devices,
        count=spec.devices.count if spec else 1,
        name=name,
        oversubscribe=oversubscribe,
        **resolve(options, policy).terms(),
    )


def summary(grant: Grant) -> str:
    """One-line summary of a grant and of how strictly it is enforced."""
    from penstock.model import format_cores, human_memory

    shares = "; ".join(
        f"{human_memory(share.memory_bytes)} and {format_cores(share.cores_permille)} cores of "
        f"{'simulated ' if grant.machine else ''}device {share.index} ({share.name})"
        for share in grant.devices
    )
    return (
        f"tenant {grant.tenant}: {shares}, {grant.mode}; cooperative: without a root agent, a "
        "program of yours could undo the quota"
    )


def warn_of_obstacles(command: str) -> None:
    """Warns if the program cannot load the shim (its children may), or if MPS makes CUDA fail."""
    from penstock.node.launch.mps import has_control_pipe, pipe_directory
    from penstock.node.launch.program import find_program, obstacles

    path = find_program(command)
    for one in obstacles(path) if path else []:
        say(f"{one.what}; {one.advice}")
    if has_control_pipe():
        say(
            f"MPS runs here ({pipe_directory()}): with a quota below all of a device's time CUDA "
            "returns CUDA_ERROR_NOT_SUPPORTED; see penstock doctor"
        )
