"""Slurm beside Penstock: how long an urgent program waits, and what the suspended ones hold."""
