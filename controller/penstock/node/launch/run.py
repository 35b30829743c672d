"""Run of an admitted tenant's command, under supervision until the tenant ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from penstock.node.launch.child import Child
from penstock.node.supervision.supervisor import PERIOD_S, Supervisor
from penstock.node.supervision.tenant_table import TenantTable
from penstock.node.tenants.environment import program_environment, tenant_variables
from penstock.node.tenants.tenant import has_processes
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import lost_pages, survive_lost_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.devices import DeviceBackend
    from penstock.node.admission.admit import Admitted
    from penstock.node.tenants.state import State
    from penstock.node.tenants.tenant import Tenant

MEMBERS_PERIOD_S = 0.5  # how often /proc is scanned for processes that the command left behind


def run_tenant(
    state: State,
    admitted: Admitted,
    command: Sequence[str],
    source: DeviceBackend,
    announce: Callable[[], None],
    *,
    at_end: Callable[[Tenant], None] | None = None,
) -> int:
    """Runs `command` until it exits; returns its exit code. Processes left behind keep the tenant.

    `announce` is called once the command has started. It is the last chance to print, except in
    `at_end`, which, if given, is called once the command has ended, while the tenant still exists.

    Raises:
        CommandNotStartedError: the command cannot be executed; the tenant is removed.
    """
    tenant = admitted.tenant
    survive_lost_pages()  # return the exit code whatever the tenant does to its pages
    supervisor = Supervisor(tenant, TenantTable(state), source)
    supervisor.tick()
    try:
        child = Child(
            command,
            program_environment(tenant_variables(state, tenant, admitted.grant, source)),
        )
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


def _let_go_of_files() -> None:
    """Points stdin, stdout and stderr at /dev/null, and closes other inherited descriptors.

    The command has its own copies. A reader of the command's output must see its end when the
    command closes it, not when we do. Later messages are recorded as events of the tenant.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for stream in (sys.stdout, sys.stderr):
        # A stream that is closed or cannot be written must not end the command.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        # Descriptors that we opened are not inheritable, so the rest came from our parent.
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                os.close(int(name))


def _guarded(tick: Callable[[], None], tenant: Tenant) -> Callable[[], None]:
    """Wraps `tick` so that a failure is recorded once and never ends the user's command."""
    said: set[str] = set()

    def say_once(event: str, reason: str) -> None:
        if reason not in said:
            said.add(reason)
            record_event(tenant.directory, event, reason=reason)

    def guarded() -> None:
        try:
            tick()
        except Exception as error:  # noqa: BLE001 - no failure here may stop the command
            say_once("supervision-failed", f"{type(error).__name__}: {error}")
        if lost_pages():
            say_once(
                "page-lost",
                "a page of the tenant or of the simulated machine was truncated, or its file "
                "system is full: this tenant is no longer supervised; end it and start it again",
            )

    return guarded


def _keep_in_background(supervisor: Supervisor, tenant: Tenant) -> None:
    """Continues supervision in a forked process until the tenant's last process ends.

    The forked process has its own session and inherits the supervisor's lock. This process returns
    at once.
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
