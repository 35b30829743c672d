"""Python bindings of the shim: library paths, a tenant's pages, the simulated machine.

A tenant's program never loads this package; it loads only `libpenstock.so`.
"""
