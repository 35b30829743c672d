"""Node process: DRA driver and device plugin, between the kubelet and the agent's socket.

Both allocation modes, claims and extended resources, end in `allocation`, which creates a tenant of
the agent. This process keeps no state: requests are in the API server, and grants in the agent.
"""
