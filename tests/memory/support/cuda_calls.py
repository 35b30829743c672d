"""Short names for driver calls, for the programs that tests run in a tenant.

Calls go through `cuda.bindings`, as those of most Python programs; `old` reaches the first versions
and per-thread names that bindings do not offer.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cu

from penstock_shim.pages import read_usage

MIB = 1 << 20
OUT_OF_MEMORY = 2
INVALID_DEVICE = 101


class _Old:
    """The driver's exports under their own names; opened in the tenant, not by the tests."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes.CDLL("libcuda.so.1"), name)


old = _Old()


class CudaError(Exception):
    """A driver call that did not succeed; `args[0]` is the code."""


def ok(answer: tuple[Any, ...]) -> Any:
    """The results of a call, without its code."""
    code, *results = answer
    if int(code):
        raise CudaError(int(code))
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def refused(answer: tuple[Any, ...], code: int = OUT_OF_MEMORY) -> None:
    """The call must have been refused with this code."""
    assert int(answer[0]) == code, answer


def old_ok(code: int) -> None:
    if code:
        raise CudaError(code)


def begin(device: int = 0) -> Any:
    """Initialise; retain the primary context and make it current."""
    ok(cu.cuInit(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(device))
    ok(cu.cuCtxSetCurrent(context))
    return context


def charged(device: int = 0) -> int:
    """Bytes that the tenant's ledger holds."""
    page = Path(os.environ["PENSTOCK_TENANT_DIR"]) / "usage"
    return read_usage(page).devices[device].total_bytes


class expect:  # noqa: N801  # reads as a statement: with expect(2 * MIB): …
    """The block changes the charge by exactly so many bytes."""

    def __init__(self, change: int, device: int = 0) -> None:
        self.change, self.device = change, device

    def __enter__(self) -> None:
        self.before = charged(self.device)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            change = charged(self.device) - self.before
            assert change == self.change, f"charge changed by {change}, not {self.change}"
