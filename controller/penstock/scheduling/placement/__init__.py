"""Placement: which shares of which devices a Pod gets on a node, or why it gets none.

These modules use no clock, files or Kubernetes API. `device_state` holds a node's devices and their
allocated shares, and `pod_request` the requests of containers. `fit` matches a request to a node,
`feasibility` to many nodes, `reasons` explains what nodes lack, and `preempt` chooses the Pods to
evict.
"""
