"""Beside a stock kube-scheduler: its extender, which knows devices.

`ledger` is what is taken of each node's devices, `binding` writes a Pod's node and devices in one
update, `extender` answers the scheduler. Nothing is kept: the API server's objects say it all.
"""
