"""Autoscaling of a command's replicas on one node, according to a policy's `scale` section.

`replicas` starts and ends replicas on this machine, `sampling` measures them, and `scaler` combines
both with the decision in `penstock.scheduling.replicas.decide`.
"""
