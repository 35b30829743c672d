"""Metering of tenants' use, exact across restarts, and the node's Prometheus endpoint.

The agent calls `Meter`; `usage` reads what it stored; `exporter` serves current values. The
amounts are differences of the usage pages' cumulative counters, stored with the reading from which
they were computed: see `account` for the arithmetic and `store` for what a kill can and cannot do.
"""
