"""The node agent: owns the devices and the tenants' files, and answers for both.

`Agent` takes orders and goes its rounds; it knows nothing of how orders arrive (`node.rpc`).
All that it needs to go on after it was killed lies in the tenants' directories.
"""

from penstock.node.agent.agent import Agent
from penstock.node.agent.orders import Orders
from penstock.node.agent.principal import Principal
from penstock.node.agent.view import DeviceView, TenantView

__all__ = ["Agent", "DeviceView", "Orders", "Principal", "TenantView"]
