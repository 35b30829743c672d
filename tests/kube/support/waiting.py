"""Waiting for what happens by itself, on a machine that has other work as well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import urllib3
from kubernetes.client import ApiException

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
WITHIN_S = 60


def until(what: str, look: Callable[[], T], within_s: float = WITHIN_S) -> T:
    """Waits for `look` to return something true, and returns it; the API may fail meanwhile.

    Raises:
        AssertionError: it did not become true; says what was seen last.
    """
    end = time.monotonic() + within_s
    seen: object = None
    while time.monotonic() < end:
        try:
            if value := look():
                return value
            seen = value
        except (ApiException, urllib3.exceptions.HTTPError) as error:
            seen = error
        time.sleep(0.2)
    raise AssertionError(f"not within {within_s:g} s: {what}; last seen: {seen}")
