"""Runs the documented parts of one of Numba-CUDA's documentation examples, as they stand.

The examples lie in the installed package as test files; what the documentation shows is between
markers `ex_NAME.PART.begin` and `.end`. Kernels compute nothing on the simulated GPU, so the values
that the tests around them compare are not compared.
"""

from __future__ import annotations

import re
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path


def parts(name: str) -> list[str]:
    package = find_spec("numba_cuda")
    (root,) = package.submodule_search_locations
    folder = Path(root) / "numba" / "cuda" / "tests" / "doc_examples"
    text = (folder / f"test_{name}.py").read_text()
    found = re.findall(
        r"^ *# ([\w.]*ex_[\w.]+)\.begin\n(.*?)^ *# \1\.end", text, re.MULTILINE | re.DOTALL
    )
    if not found:
        raise SystemExit(f"{name}: nothing is marked as documentation")
    return [textwrap.dedent(body) for _, body in found]


def main() -> None:
    scope: dict[str, object] = {"__name__": "example"}
    for part in parts(sys.argv[1]):
        exec(compile(part, sys.argv[1], "exec"), scope)  # noqa: S102  the point of this program
    print("done")


if __name__ == "__main__":
    main()
