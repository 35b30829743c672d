"""What runs on each node beside its agent, between the kubelet and the agent's socket.

Both ways in which a Pod gets a vGPU, a claim and extended resources, end in `allocation`: one
tenant of the agent's. Nothing is kept here: the API server has what was asked for, the agent what
was granted.
"""
