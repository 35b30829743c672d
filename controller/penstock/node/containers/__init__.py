"""Tenants in containers: a CDI device each, which adds shim, quota and device to any image.

The node agent calls `Containers`; start reading there. docs/decisions/0014 explains the layout of
files in containers.
"""

from penstock.node.containers.containers import (
    Adopted,
    Containers,
    companions,
    container_libraries,
)

__all__ = ["Adopted", "Containers", "companions", "container_libraries"]
