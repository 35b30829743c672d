"""Doctor checks of the node's agent: whether it runs and responds, and which devices it drives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock import __version__
from penstock.diagnostics.finding import Finding, failure, ok, warning
from penstock.model import PenstockError, listing
from penstock.node.rpc import AgentClient, find_agent_socket
from penstock.node.tenants.state import State, agent_sockets

CHECK = "agent"
_RESTART = "systemctl restart penstock-agent, or restart penstock agent; tenants keep running"


@dataclass(frozen=True)
class AgentSeen:
    """The findings about the agent and, if it responds, its state directory and machine."""

    findings: list[Finding]
    directory: Path | None = None  # the state directory of the agent that responds
    machine: Path | None = None  # its simulated machine; None for real devices


def look_at_agent(directory: Path | None) -> AgentSeen:
    """Checks the agent that commands with this state directory would use."""
    sockets = agent_sockets(directory)
    if not sockets:
        return AgentSeen([ok(CHECK, "none runs here: each penstock run supervises its own tenant")])
    found = find_agent_socket(directory)
    if found is None:
        seen = f"no answer at {sockets[0]}"
        if State(sockets[0].parent).has_agent():
            return AgentSeen([failure(CHECK, f"{seen}, though an agent runs: it hangs", _RESTART)])
        return AgentSeen([warning(CHECK, f"{seen}: an agent was killed there", _RESTART)])
    try:
        with AgentClient.local(found) as agent:
            node = agent.node()
    except PenstockError as error:
        return AgentSeen([failure(CHECK, f"{error.what}: {error.why}", error.fix or _RESTART)])
    drives = ", ".join(f"{one.index} {one.name}" for one in node.devices) or "no devices"
    seen = (
        f"{node.version} answers at {found}; "
        f"{node.tenants} tenant{'s' * (node.tenants != 1)}; drives "
        f"{'simulated ' if node.machine else ''}{drives}"
    )
    pools = [str(one.index) for one in node.devices if one.owner == "pool"]
    if pools:
        seen += f"; the compute pool's devices: {listing(pools)}"
    if not node.enforces:
        seen += "; cooperative, because it is not root"
    findings = [ok(CHECK, seen)]
    if node.version != __version__:
        seen = f"it is {node.version}, this command {__version__}"
        findings = [*findings, warning(CHECK, seen, f"finish the upgrade: {_RESTART}")]
    return AgentSeen(findings, found.parent, Path(node.machine) if node.machine else None)
