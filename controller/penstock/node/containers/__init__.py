"""Tenants in containers: a CDI device each, which brings shim, quota and device into any image.

`Containers` is what a node agent calls; to find your way, begin there. docs/decisions/0014 says why
things lie where they do.
"""

from penstock.node.containers.containers import (
    Adopted,
    Containers,
    companions,
    container_libraries,
)

__all__ = ["Adopted", "Containers", "companions", "container_libraries"]
