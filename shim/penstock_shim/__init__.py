"""The shim's Python side: library paths, the tenant's pages, the simulated machine.

Nothing here is ever loaded into a tenant's program; that is `libpenstock.so` alone.
"""
