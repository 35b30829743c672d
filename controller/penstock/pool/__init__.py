"""The manager of a compute pool: keeps the pool's state durable, and has its decisions carried out.

The decisions themselves are made in `penstock.scheduling.blocks`.
"""
