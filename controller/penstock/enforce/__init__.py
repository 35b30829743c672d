"""Enforcement that does not trust the tenant: from the devices' figures and the kernel's alone.

The agent makes one `Enforcer` and calls `step` about once a second, with a `Subject` a tenant.
"""

from penstock.enforce.enforcer import Enforcer
from penstock.enforce.event import Event
from penstock.enforce.hold import Hold
from penstock.enforce.ladder import Finding, Step
from penstock.enforce.measure import Foreign
from penstock.enforce.process import Process
from penstock.enforce.subject import Subject

__all__ = ["Enforcer", "Event", "Finding", "Foreign", "Hold", "Process", "Step", "Subject"]
