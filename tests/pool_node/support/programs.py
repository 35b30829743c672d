"""Programs that tests run as applications of a pool."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests.agent.support.programs import backlogged

from penstock.devices.backends.simulated import SimulatedDevices
from penstock.node.tenants.environment import tenant_variables
from penstock.node.tenants.state import State
from penstock.node.tenants.tenant import Tenant


def start(member, name, *command):
    """Starts a program of the application, as its holder would; by default one that launches."""
    state = State(member.state)
    tenant = Tenant(state.tenants / name)
    grant = tenant.grant()
    source = SimulatedDevices(Path(grant.machine))
    variables = tenant_variables(state, tenant, grant, source)
    if command:
        return member.launch_in({**member.environment, **variables}, *command)
    return member.launch(SimpleNamespace(environment=variables), *backlogged(600))
