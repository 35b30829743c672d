"""Uninstall: checks that Penstock is unused, then cleans every node and the API server.

The chart's hooks run three steps: `check` before anything is removed, then, after the removal,
`node` on every node and `cluster` once. Each step may be repeated.
"""
