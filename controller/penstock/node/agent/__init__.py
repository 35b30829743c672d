"""Node agent: owns the node's devices and the tenants' files.

`Agent` creates the parts. `TenantRegistry` knows the tenants, `ReconcileLoop` supervises them, and
`GrantOrder` and `Orders` carry out the requests that arrive through `node.rpc`. All the state that
an agent needs after a restart is in the tenants' directories.
"""

from penstock.node.agent.agent import Agent
from penstock.node.agent.principal import Principal

__all__ = ["Agent", "Principal"]
