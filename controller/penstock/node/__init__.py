"""One node: state directory, tenants, admission, supervision of running commands.

Each tenant is a directory. Every decision is made from what is on disk and in /proc, so any
Penstock process may be killed at any time. Start reading at `launch/run.py`, which implements
`penstock run`.
"""
