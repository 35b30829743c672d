"""Puts the newest report, and what changed since the one before, into bench/README.md.

python -m tests.gpu.page [PAGE [RESULTS]]

A real device's report goes before any simulated one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.gpu.compare import changes, table
from tests.gpu.reading import before, reports_in
from tests.gpu.report import markdown

from penstock.model import PenstockError

BENCH = Path(__file__).parents[2] / "bench"
BEGIN, END = "<!-- gpu check: written by tests/gpu/page.py -->", "<!-- end of gpu check -->"


def section(results: Path) -> str:
    """The page's part, from the reports in a folder.

    Raises:
        PenstockError: there are none, or one is damaged.
    """
    reports = reports_in(results)
    if not reports:
        raise PenstockError(f"no report in {results}", "make gpu-check writes them")
    path, newest = reports[-1]
    parts = [markdown(newest, level="###").rstrip(), f"Every measurement: `results/{path.name}`."]
    earlier = before(newest, reports)
    if earlier:
        parts += [f"#### Changed since `{earlier[0].name}`", table(changes(earlier[1], newest))]
    return "\n\n".join(parts)


def replaced(page: str, part: str) -> str:
    """The page with another part between its marks. Raises PenstockError: it has lost them."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise PenstockError("the page has lost its marks", f"{BEGIN} … {END}")
    return f"{head}{BEGIN}\n{part}\n{END}{tail}"


def main() -> int:
    """The exit code."""
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else BENCH / "README.md"
    results = Path(sys.argv[2]) if len(sys.argv) > 2 else BENCH / "results"
    try:
        text = replaced(page.read_text(encoding="utf-8"), section(results))
        page.write_text(text, encoding="utf-8")
    except (PenstockError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
