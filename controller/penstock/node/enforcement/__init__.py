"""Enforcement that does not trust tenants, because it uses only figures of devices and kernel.

The agent creates one `Enforcer` and calls its `step` about once a second, with one `Subject` per
tenant.
"""

from penstock.node.enforcement.enforcement_event import Event
from penstock.node.enforcement.enforcer import Enforcer
from penstock.node.enforcement.held_limits import Hold
from penstock.node.enforcement.ladder import Finding, Step
from penstock.node.enforcement.measure import Foreign
from penstock.node.enforcement.process import Process
from penstock.node.enforcement.subject import Subject

__all__ = ["Enforcer", "Event", "Finding", "Foreign", "Hold", "Process", "Step", "Subject"]
