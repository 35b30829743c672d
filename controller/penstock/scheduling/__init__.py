"""Decisions on the placement of shares and on replica counts, made without I/O and clock."""
