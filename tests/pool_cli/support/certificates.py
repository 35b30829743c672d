"""Certificates for a pool, made by the commands of the how-to page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "compute-pool.md"


def make(folder: Path) -> Path:
    """A folder with ca.crt, and manager, node and admin certificates with their keys."""
    page = PAGE.read_text(encoding="utf-8")
    script = next(
        text for text in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "-x509" in text
    )
    folder.mkdir(parents=True, exist_ok=True)
    script = script.replace("manager.example", "localhost")
    subprocess.run(["sh", "-euc", script], cwd=folder, capture_output=True, check=True, timeout=60)
    return folder
