"""Supervision of running tenants: usage, limits, elastic allowances, use that bypasses the shim."""
