"""Uninstall: checks that Penstock is unused, then cleans every node and the API server.

The chart's hooks run these in this order: `check` before anything is removed, and after the removal
`node` on every node and `cluster` once. Each may be repeated.
"""
