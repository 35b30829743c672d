"""Walks over the arguments of operations, which may be nested in lists, tuples and dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def replaced(value: Any, of: Callable[[Any], Any]) -> Any:
    """`value` with `of(x)` for each x that is no container."""
    if isinstance(value, (list, tuple)):
        return [replaced(one, of) for one in value]
    if isinstance(value, dict):
        return {name: replaced(one, of) for name, one in value.items()}
    return of(value)
