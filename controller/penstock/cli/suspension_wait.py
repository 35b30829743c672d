"""Waiting until a tenant's device memory is released or restored, with progress on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from penstock.cli.say import say
from penstock.model import PenstockError, human_memory

if TYPE_CHECKING:
    from penstock.node.rpc import AgentClient, TenantMessage

PERIOD_S = 0.1
TOLD_PERIOD_S = 2.0  # between lines of progress


def wait_for_release(agent: AgentClient, tenant: str) -> TenantMessage:
    """Returns the tenant once its memory is released.

    Raises:
        PenstockError: the driver refused, in which case the tenant is as it was before, or the
            tenant has ended or was resumed.
    """
    found = _wait(agent, tenant, ("released", "launches", ""))
    if found.suspension == "released":
        return found
    state = "its launches still wait" if found.suspension else "it runs on"
    raise PenstockError(
        f"the device memory of tenant {tenant} was not released, and {state}",
        found.suspension_problem or "it was resumed meanwhile",
    )


def wait_for_restore(agent: AgentClient, tenant: str) -> TenantMessage:
    """Returns the tenant once it is resumed.

    Raises:
        PenstockError: its memory could not be restored and stays on the host, or the tenant has
            ended or was suspended again.
    """
    found = _wait(agent, tenant, ("released", "launches", "releasing", ""))
    if not found.suspension:
        return found
    raise PenstockError(
        f"tenant {tenant} stays suspended",
        found.suspension_problem or "it was suspended again meanwhile",
    )


def _wait(agent: AgentClient, tenant: str, states: tuple[str, ...]) -> TenantMessage:
    told_s = time.monotonic()
    told_problem = ""
    while True:
        found = next((one for one in agent.tenants() if one.name == tenant), None)
        if found is None:
            raise PenstockError(
                f"tenant {tenant} has ended", "it was ended, or its last process has ended",
                reason="no-such-tenant",
            )  # fmt: skip
        if found.suspension in states:
            return found
        problem = found.suspension_problem
        if problem and problem != told_problem:
            told_problem = problem
            say(f"{tenant}: {problem}; trying again")
        elif sys.stderr.isatty() and time.monotonic() - told_s >= TOLD_PERIOD_S:
            told_s = time.monotonic()
            say(f"{tenant}: {found.suspension} {human_memory(found.host_bytes)} …")
        time.sleep(PERIOD_S)
