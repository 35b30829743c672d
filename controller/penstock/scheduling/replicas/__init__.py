"""Replica counts: decides from samples and a policy how many replicas there should be."""
