"""Replica counts: how many replicas there should be, from samples and a policy."""
