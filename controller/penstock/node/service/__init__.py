"""Installation of the agent as a systemd service."""

from penstock.node.service.installation import Installation, Step
from penstock.node.service.systemd import restart_service, runs_systemd, stop_service

__all__ = ["Installation", "Step", "restart_service", "runs_systemd", "stop_service"]
