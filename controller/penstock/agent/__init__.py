"""The node agent: owns the devices and the tenants' files, and answers for both.

`Agent` takes orders and goes its rounds; it knows nothing of how orders arrive (`penstock.api`).
All that it needs to go on after it was killed lies in the tenants' directories.
"""

from penstock.agent.agent import Agent
from penstock.agent.caller import Caller
from penstock.agent.orders import Orders
from penstock.agent.view import DeviceView, TenantView

__all__ = ["Agent", "Caller", "DeviceView", "Orders", "TenantView"]
