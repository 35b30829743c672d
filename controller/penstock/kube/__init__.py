"""Penstock on Kubernetes. Only this package talks to an API server or to a kubelet.

The chart runs four processes: `node` next to each agent, `place` (the extender) next to a
scheduler, `admit` (the webhook) and `control` (the controller). They share the modules here.
"""
