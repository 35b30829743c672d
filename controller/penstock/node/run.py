"""From a request to a running tenant: choose devices, admit, make the tenant, run the command."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from penstock.devices import Device, DeviceSource, find_devices
from penstock.model import (
    PenstockError,
    check_tenant_name,
    cores_from_tflops,
    format_cores,
    human_memory,
)
from penstock.model.names import name_from_command
from penstock.node.admission import check_admission, check_size, free_share, roomiest
from penstock.node.events import record_event
from penstock.node.grant import DeviceGrant, Grant, Mode
from penstock.node.launch import Child
from penstock.node.processes import TENANT_VARIABLE
from penstock.node.supervisor import PERIOD_S, Supervisor
from penstock.node.tenant import Tenant, collect, create_tenant, has_processes, live_grants
from penstock_shim import paths
from penstock_shim.pages import lost_pages, survive_lost_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.node.state import State

_Figure = TypeVar("_Figure", int, "int | None")
MEMBERS_PERIOD_S = 0.5  # how often left-over processes are looked for in /proc


@dataclass(frozen=True)
class Request:
    """What a user asks for. What is not said is all that is free.

    Memory and cores are one figure for all devices, or one for each of `devices`. At most one of
    `cores_permille` and `tflops` is given.
    """

    command: Sequence[str]
    memory_bytes: Sequence[int] | None
    cores_permille: Sequence[int] | None
    tflops: float | None = None
    mode: Mode = "strict"
    devices: Sequence[str] = ()  # indexes, UUIDs; none: the roomiest
    count: int = 1
    name: str | None = None
    oversubscribe: bool = False
    policy: str | None = None
    allow_unknown: bool = False
    record: bool = False


@dataclass
class Admitted:
    """A tenant that may start, and what its user is to be told."""

    tenant: Tenant
    grant: Grant
    lock: int
    notes: list[str] = field(default_factory=list)


def admit(state: State, request: Request, source: DeviceSource) -> Admitted:
    """Decides on the request and makes the tenant. Raises `PenstockError`; then nothing is left."""
    notes: list[str] = []
    machine = str(source.machine) if source.machine else None
    with state.lock():
        living = collect(state)
        grants = live_grants(living)
        devices = _candidates(source)
        free = {device.uuid: free_share(device, machine, grants) for device in devices}
        if request.devices:
            chosen = find_devices(source.devices(), request.devices)
            free |= {device.uuid: free_share(device, machine, grants) for device in chosen}
        else:
            chosen = roomiest(devices, free, request.count)
        shares = []
        memory = _for_each("--memory", request.memory_bytes or [None], chosen, request)
        cores = _for_each("--cores", request.cores_permille or [None], chosen, request)
        for device, wanted_bytes, permille in zip(chosen, memory, cores, strict=True):
            left = free[device.uuid]
            memory_bytes = left.memory_bytes if wanted_bytes is None else wanted_bytes
            if permille is None and request.tflops is not None:
                permille = _cores_of_tflops(device, request.tflops, notes)  # noqa: PLW2901
            if permille is None:  # with none free, admission says who has them
                permille = max(1, left.cores_permille)  # noqa: PLW2901
            share = _share(device, memory_bytes, permille, notes)
            if request.oversubscribe:
                notes.append(
                    f"{device} may be granted more than once: quotas there are not guaranteed"
                )
            else:
                check_admission(device, free[device.uuid], share.memory_bytes, share.cores_permille)
            shares.append(share)
        name = request.name
        if name is None:
            name = name_from_command(request.command, [tenant.name for tenant in living])
        grant = Grant(
            tenant=check_tenant_name(name),
            mode=request.mode,
            devices=tuple(shares),
            command=tuple(request.command),
            user=user_name(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            policy=request.policy,
            machine=machine,
            oversubscribed=request.oversubscribe,
            allow_unknown=request.allow_unknown,
            record=request.record,
        )
        tenant, lock = create_tenant(state, grant, source.libraries())
    return Admitted(tenant, grant, lock, notes)


def run_tenant(
    state: State,
    admitted: Admitted,
    source: DeviceSource,
    announce: Callable[[], None],
    at_end: Callable[[Tenant], None] | None = None,
) -> int:
    """Runs the command to its end; returns its exit code. Left-over children keep the tenant.

    `announce` is called when the command has started, the last time that we may speak; unless there
    is an `at_end`, which is called when the command has ended and the tenant is still there.
    Raises `CommandNotStartedError`; the tenant is gone then.
    """
    tenant = admitted.tenant
    survive_lost_pages()  # whatever the tenant does to its pages, its exit code is handed on
    supervisor = Supervisor(state, tenant, source)
    supervisor.tick()
    try:
        child = Child(admitted.grant.command, tenant_environment(state, admitted, source))
    except BaseException:
        supervisor.close()
        tenant.remove()
        raise
    announce()
    if at_end is None:
        _let_go_of_files()
    exit_code = child.wait(_guarded(supervisor.tick, tenant), PERIOD_S)
    if at_end is not None:
        at_end(tenant)
        _let_go_of_files()
    if has_processes(tenant):
        _keep_in_background(supervisor, tenant)
    else:
        supervisor.close()
        tenant.remove()
    return exit_code


def tenant_environment(state: State, admitted: Admitted, source: DeviceSource) -> dict[str, str]:
    """The command's environment: ours, the device's, the preload, and where its quota is."""
    environment = {**os.environ, **source.environment(admitted.tenant.name)}
    libraries = [_preloadable(state, paths.so_path()), _preloadable(state, paths.nvml_so_path())]
    # The user's own preloads go behind ours: the shim must be asked first.
    own = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    environment["LD_PRELOAD"] = ":".join([*libraries, *(p for p in own if p not in libraries)])
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in admitted.grant.devices)
    environment[TENANT_VARIABLE] = str(admitted.tenant.directory)
    return environment


def _preloadable(state: State, library: Path) -> str:
    """`library` by a path without blanks and colons, which LD_PRELOAD cannot hold."""
    if not any(character in str(library) for character in " :\t"):
        return str(library)
    link = state.directory / library.name
    if any(character in str(link) for character in " :\t"):
        raise PenstockError(
            f"cannot preload {library}",
            "LD_PRELOAD holds no path with a blank or a colon",
            "name a --state-dir without them",
        )
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.symlink_to(library)
    aside.replace(link)
    return str(link)


def _candidates(source: DeviceSource) -> list[Device]:
    """The devices that $CUDA_VISIBLE_DEVICES leaves. It was not meant for a simulated machine."""
    devices = source.devices()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if not visible or source.machine is not None:
        return devices
    try:
        return find_devices(devices, [visible])
    except PenstockError as error:
        raise PenstockError(
            f"$CUDA_VISIBLE_DEVICES is {visible!r}", str(error), "unset it or name a --device"
        ) from error


def _for_each(
    option: str, figures: Sequence[_Figure], chosen: Sequence[Device], request: Request
) -> Sequence[_Figure]:
    """One figure a device."""
    if len(figures) == 1:
        return list(figures) * len(chosen)
    if len(figures) != len(request.devices and chosen):
        which = f"{len(chosen)} devices" if request.devices else "devices that are not named"
        raise PenstockError(
            f"{option} has {len(figures)} figures for {which}",
            "it is one for all, or one for each device in the order of --device",
            "name as many devices, for example --device 0,1 --memory 8Gi,4Gi",
        )
    return figures


def _share(device: Device, memory_bytes: int, cores: int, notes: list[str]) -> DeviceGrant:
    check_size(device, memory_bytes)
    if memory_bytes <= device.context_bytes:
        notes.append(
            f"{human_memory(memory_bytes)} is not more than one process's context takes "
            f"on this device ({human_memory(device.context_bytes)}): no CUDA program can start"
        )
    return DeviceGrant(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory_bytes=memory_bytes,
        cores_permille=cores,
        device_memory_bytes=device.memory_bytes,
        context_bytes=device.context_bytes,
    )


def _cores_of_tflops(device: Device, tflops: float, notes: list[str]) -> int:
    if device.tflops is None:
        raise PenstockError(
            f"tflops: {tflops:g} cannot be granted", f"the rated TFLOPS of {device} are not known",
            "ask for cores instead",
        )  # fmt: skip
    cores = cores_from_tflops(tflops, device.tflops)
    notes.append(
        f"tflops: {tflops:g} of {device.tflops:g} on {device} is {format_cores(cores)} cores "
        "(rounded up to whole percents)"
    )
    return cores


def user_name() -> str:
    """Who runs this: the name, or the uid where there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in containers
        return str(os.getuid())


def _let_go_of_files() -> None:
    """Points standard input and outputs at /dev/null and closes what else was inherited.

    The command has them; a reader of its pipe must see the end when the command closes it, not when
    we do. What is to be said from here on goes to the tenant's events.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for stream in (sys.stdout, sys.stderr):
        # A stream that was closed, or cannot be written, must not end the command.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        # Whatever we opened ourselves is not inheritable, so the rest came from whoever started us.
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                os.close(int(name))


def _guarded(tick: Callable[[], None], tenant: Tenant) -> Callable[[], None]:
    """A round that fails is recorded once and never ends the user's command."""
    said: set[str] = set()

    def say_once(event: str, reason: str) -> None:
        if reason not in said:
            said.add(reason)
            record_event(tenant.directory, event, reason=reason)

    def guarded() -> None:
        try:
            tick()
        except Exception as error:  # noqa: BLE001 - the command must run on whatever happens here
            say_once("supervision-failed", f"{type(error).__name__}: {error}")
        if lost_pages():
            say_once(
                "page-lost",
                "a page of the tenant or of the simulated machine was truncated, or its file "
                "system is full: this tenant is no longer supervised; end it and start it again",
            )

    return guarded


def _keep_in_background(supervisor: Supervisor, tenant: Tenant) -> None:
    """Goes on supervising in a process of its own session, until the tenant's last process ends.

    The child inherits the supervisor's lock; this process returns at once.
    """
    if os.fork():
        return
    try:
        os.setsid()
        os.chdir("/")
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tick = _guarded(supervisor.tick, tenant)
        look_at = 0.0
        while True:
            tick()
            if time.monotonic() >= look_at:
                if not has_processes(tenant):
                    break
                look_at = time.monotonic() + MEMBERS_PERIOD_S
            time.sleep(PERIOD_S)
        tenant.remove()
    finally:
        os._exit(0)
