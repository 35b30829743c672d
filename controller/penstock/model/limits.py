"""Modes, enforcement steps and the default grace of a quota, declared once for all layers.

YAML, protobuf, pages, tables and Kubernetes objects map to these words, each in one place.
"""

from __future__ import annotations

from typing import Literal, get_args

Mode = Literal["strict", "elastic"]
MODES: tuple[Mode, ...] = get_args(Mode)
Step = Literal["deny", "throttle", "suspend", "terminate"]
"""The strongest step that enforcement may take against measured use beyond the grant."""
STEPS: tuple[Step, ...] = get_args(Step)  # from the mildest to the strongest
DEFAULT_STEP: Step = "terminate"
DEFAULT_GRACE_NS = 10 * 10**9  # from SIGTERM to SIGKILL
DEFAULT_GRACE = "10s"  # the same, as options and files spell it
