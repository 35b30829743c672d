"""Tenants in containers: one CDI device for each, adding shim, quota and device to any image.

The node agent calls `Containers`, so start reading there. docs/decisions/0014 explains the layout
of the files in containers.
"""

from penstock.node.containers.containers import Adopted, Containers, companions, container_libraries

__all__ = ["Adopted", "Containers", "companions", "container_libraries"]
