"""Penstock's control plane: policies, devices, tenants of one node, and the command line."""

__version__ = "0.1.0"
