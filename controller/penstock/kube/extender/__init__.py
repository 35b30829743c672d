"""Scheduler extender for a stock kube-scheduler: places Pods by shares of devices.

`ledger` counts the shares in use on each node's devices, `binding` writes a Pod's node and devices
in one update, and `extender` serves the scheduler's requests. All state is in the API server's
objects.
"""
