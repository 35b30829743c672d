"""Builds what takes minutes once: `python -m tests.support.first_builds`.

`make test` runs this first, so that no test waits for a compiler or runs beside one. It never
fails: it prints what this machine lacks, and the tests that need it are skipped or fail later.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.containers.support import images as container_images
from tests.fuzz.support import clang, fuzzing
from tests.kube import cluster
from tests.kube.cluster import images as cluster_images
from tests.native.support import builds

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    for what, make in BUILDS.items():
        _build(what, make)


def _build(what: str, make: Callable[[], object]) -> None:
    try:
        make()
    except (
        builds.BuildError, clang.NotToBeHadError, cluster.NotToBeHadError,
        container_images.NotToBeHadError,
    ) as why:  # fmt: skip
        print(f"{what} could not be built: {why}", file=sys.stderr)


def _containers() -> None:
    container_images.nvidia_hook()
    container_images.bullseye()


def _this_tree() -> None:
    if os.geteuid() == 0:  # tests on clusters are skipped for others
        cluster_images.penstock()


def _native(sanitizer: str) -> None:
    builds.build(sanitizer, *builds.LIBRARIES, *builds.PROGRAMS)
    builds.build(sanitizer, "native_tests")


BUILDS: dict[str, Callable[[], object]] = {
    "images for tests of containers": _containers,
    "the image of this tree": _this_tree,
    "the native tests": lambda: builds.build("plain", "native_tests"),
    "the shim with AddressSanitizer": lambda: _native("address"),
    "the shim with ThreadSanitizer": lambda: _native("thread"),
    "the fuzzers": fuzzing.build,
}


if __name__ == "__main__":
    main()
