"""Metering of tenants' use, exact across restarts, and the node's Prometheus endpoint.

The agent calls `Meter`; `usage` reads what the meter stored; `exporter` serves current values. The
amounts are differences of cumulative counters in the usage pages. They are stored together with the
reading that they were computed from: see `account` for the arithmetic, and `store` for what is
guaranteed if the agent is killed.
"""
