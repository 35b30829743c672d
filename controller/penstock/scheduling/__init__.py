"""Placement of shares and replica counts: pure decisions, without I/O and without a clock."""
