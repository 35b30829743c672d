"""Enforcement that does not trust tenants: it uses figures of devices and the kernel alone.

The agent creates one `Enforcer` and calls `step` about once a second, with a `Subject` per tenant.
"""

from penstock.node.enforcement.enforcement_event import Event
from penstock.node.enforcement.enforcer import Enforcer
from penstock.node.enforcement.held_limits import Hold
from penstock.node.enforcement.ladder import Finding, Step
from penstock.node.enforcement.measure import Foreign
from penstock.node.enforcement.process import Process
from penstock.node.enforcement.subject import Subject

__all__ = ["Enforcer", "Event", "Finding", "Foreign", "Hold", "Process", "Step", "Subject"]
