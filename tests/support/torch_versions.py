"""`make test-torch-versions`: the virtual card's tests with each release of torch that it supports.

One environment after another is made below build, and removed again. The table at the end says how
each went; the exit status is 1 if one failed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import torch_environment

from penstock.card.names import END_TORCH, FIRST_TORCH

TESTS = "tests/card"


def releases() -> list[str]:
    """The minor releases that are supported, such as "2.13". They are all of one major release."""
    return [f"{FIRST_TORCH[0]}.{minor}" for minor in range(FIRST_TORCH[1], END_TORCH[1])]


def outcome(folder: Path, release: str, wheel: Path, arguments: list[str]) -> tuple[str, str]:
    """The exact release, and the last line of its tests' output or what failed before them."""
    try:
        torch_environment.make(folder, release)
        subprocess.run([folder / "bin/pip", "install", "--quiet", f"{wheel}[torch]"], check=True)
        version = subprocess.run(
            [folder / "bin/python", "-c", "import torch; print(torch.__version__)"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
    except subprocess.CalledProcessError as error:
        return release, f"FAILED: exit status {error.returncode} of {error.cmd[0]}"
    tests = subprocess.Popen(
        [folder / "bin/pytest", "-n", "2", TESTS, *arguments], stdout=subprocess.PIPE, text=True
    )
    last = ""
    for line in tests.stdout or ():
        sys.stdout.write(line)
        last = line.strip("= \n") or last
    return version, ("FAILED: " if tests.wait() else "") + last


def main() -> None:
    """Arguments are pytest's."""
    (wheel,) = Path("build/wheel").glob("*.whl")
    rows = []
    for release in releases():
        folder = Path("build") / f"torch-{release}"
        try:
            rows.append(outcome(folder, release, wheel, sys.argv[1:]))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for version, told in rows:
        print(f"torch {version:<16} {told}")
    sys.exit(any(told.startswith("FAILED") for _, told in rows))


if __name__ == "__main__":
    main()
