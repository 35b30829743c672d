"""Node process: DRA driver and device plugin, between the kubelet and the agent's socket.

Both allocation modes, claims and extended resources, end in `allocation`: one tenant of the agent.
This process keeps no state: requests are in the API server, grants in the agent.
"""
