"""Supervision of running tenants: use, limits, elastic allowances, use that bypasses the shim."""
