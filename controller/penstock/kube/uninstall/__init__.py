"""Taking Penstock off a cluster: whether it may go, what it left on a node, what in the API server.

The chart's hooks run these in this order: `check` before anything is removed, then, once everything
is, `node` on every node and `cluster` once. Each may be repeated.
"""
