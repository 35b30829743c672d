"""Terms of a quota: mode, enforcement step and grace, with their defaults.

YAML, protobuf, pages, tables and Kubernetes objects each map to these words in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

Mode = Literal["strict", "elastic"]
MODES: tuple[Mode, ...] = get_args(Mode)
DEFAULT_MODE: Mode = "strict"
Step = Literal["deny", "throttle", "suspend", "terminate"]
"""The strongest step that enforcement may take when measured use exceeds the grant."""
STEPS: tuple[Step, ...] = get_args(Step)  # from the mildest to the strongest
DEFAULT_STEP: Step = "terminate"
DEFAULT_GRACE_NS = 10 * 10**9  # how long excess use may last before the last step
DEFAULT_GRACE = "10s"  # the same duration as written in options and files


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How a quota is enforced. Requests, grants and allocations extend this with quantities."""

    mode: Mode = DEFAULT_MODE
    policy: str | None = None  # "name (file:line)"
    allow_unknown: bool = False  # the shim forwards driver functions that it does not know
    measured: Step = DEFAULT_STEP
    grace_ns: int = DEFAULT_GRACE_NS

    def terms(self) -> dict[str, Any]:
        """Only these terms, as keyword arguments for another class that extends `Terms`."""
        return {one.name: getattr(self, one.name) for one in fields(Terms)}
