"""Quantities, names and errors that all other packages share. It imports no other package."""

from penstock.model.errors import PenstockError
from penstock.model.names import (
    TENANT_NAME_PATTERN,
    check_tenant_name,
    listing,
    name_from_command,
    nearest,
    printable,
)
from penstock.model.quantity import (
    QuantityError,
    cores_from_tflops,
    format_cores,
    format_duration,
    format_memory,
    human_memory,
    parse_cores,
    parse_duration_ns,
    parse_memory,
)

__all__ = [
    "TENANT_NAME_PATTERN",
    "PenstockError",
    "QuantityError",
    "check_tenant_name",
    "cores_from_tflops",
    "format_cores",
    "format_duration",
    "format_memory",
    "human_memory",
    "listing",
    "name_from_command",
    "nearest",
    "parse_cores",
    "parse_duration_ns",
    "parse_memory",
    "printable",
]
