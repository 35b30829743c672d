"""What tenants used, exactly and across restarts, and what the node tells Prometheus.

`Meter` is what the agent calls; `usage` reads what it wrote; `exporter` serves the present. The
amounts are differences of the usage pages' cumulative counters, kept beside the reading that they
were taken from: see `account` for the arithmetic and `store` for what a kill can and cannot do.
"""
