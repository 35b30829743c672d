"""Node agent: owns the node's devices and the tenants' files.

`Agent` runs the reconcile loop and `Orders` carries out requests; how these arrive is the business
of `node.rpc`. All state that an agent needs after it was killed is in the tenants' directories.
"""

from penstock.node.agent.agent import Agent
from penstock.node.agent.orders import Orders
from penstock.node.agent.principal import Principal
from penstock.node.agent.view import DeviceView, TenantView

__all__ = ["Agent", "DeviceView", "Orders", "Principal", "TenantView"]
