"""Penstock on Kubernetes. Only this package speaks to an API server or to a kubelet.

Parts, each a process of its own where the chart runs it: `node` beside an agent, `place` beside a
scheduler, `admit` behind the API server, `control` for the cluster. They share what lies here.
"""
