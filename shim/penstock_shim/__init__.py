"""Python binding of the shim: library paths, a tenant's pages, the simulated machine.

None of it is ever loaded into a tenant's program; only `libpenstock.so` is.
"""
