"""Placement: which shares of which devices a Pod gets on a node, or why it gets none.

Pure: no clock, no files, no Kubernetes. `device_state` holds a node's devices and what is allocated
of them, `pod_request` what containers request; `fit` matches both, `feasibility` does so for many
nodes, `reasons` explains what they lack, and `preempt` chooses the Pods to evict.
"""
