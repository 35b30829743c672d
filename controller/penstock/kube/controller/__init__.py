"""Cluster controller: policies, caps, replicas, and explanations of pending Pods.

Several replicas run, and one of them leads (`leader_election`). The controller can rebuild all of
its state from the API server: the status of policies and the ledgers of caps are in their objects,
and replica counts are in the workloads.
"""
