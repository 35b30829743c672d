"""One node: state directory, tenants, admission, supervision of running commands.

Tenants are directories; every decision is made from what is on disk and in /proc, so that any of
our processes may be killed at any time. To find your way: `run.py` is the path of `penstock run`.
"""
