"""Placement of shares and numbers of replicas, decided without I/O and without a clock."""
