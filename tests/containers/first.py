"""`python -m tests.containers.first`: what container tests need and takes minutes once.

Made before any test runs, so that none waits for a compiler, nor beside one. Who lacks something is
told here and skipped later: this never fails.
"""

from __future__ import annotations

import sys

from tests.containers import images


def main() -> None:
    try:
        images.nvidia_hook()
        images.bullseye()
    except images.NotToBeHadError as why:
        print(f"tests of containers will be skipped: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
