"""Cluster controller: policies, caps, replicas, and explanations of pending Pods.

Several replicas run, and one leads (`leader_election`). All state here can be read again: the
status of policies and the ledgers of caps are in their objects, replica counts in the workloads.
"""
