"""Builds what container tests need and what takes minutes once.

    python -m tests.containers.support.first_builds

`make test` runs this first, so that no test waits for a compiler or runs beside one. It
never fails: it prints what this machine lacks, and the tests that need it are skipped later.
"""

from __future__ import annotations

import sys

from tests.containers.support import images


def main() -> None:
    try:
        images.nvidia_hook()
        images.bullseye()
    except images.NotToBeHadError as why:
        print(f"tests of containers will be skipped: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
