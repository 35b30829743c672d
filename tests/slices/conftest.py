from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage("h200") as made:
        yield made


@pytest.fixture
def wait_until() -> Callable[..., None]:
    def wait(condition: Callable[[], object], what: str, seconds: float = 10) -> None:
        give_up = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < give_up, f"not within {seconds} s: {what}"
            time.sleep(0.01)

    return wait
