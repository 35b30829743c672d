"""Supervision of running tenants: their use and limits, elastic allowances, use past the shim."""
