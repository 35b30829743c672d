"""Wheels for a machine without network: python -m tests.gpu.wheels FOLDER PYTHON_VERSION.

The folder holds the packages that Penstock and its build need, in the releases that constraints.txt
names, and a requirements.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # the list is made on a developer's machine
    sys.exit("this needs Python 3.11")

REPOSITORY = Path(__file__).parents[2]
GLIBC = ("2_17", "2_24", "2_27", "2_28", "2_31", "2_34")


def requirements() -> list[str]:
    """Of the project and of its build, cmake and ninja included."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]["build"]
    wanted = [*project["project"]["dependencies"], *groups, "typing_extensions"]
    return list(dict.fromkeys(wanted))


def constraints() -> str:
    """Those of constraints.txt, without the marker of the Python that they were taken with."""
    text = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    return re.sub(r" *; *python_version.*", "", text)


def main() -> None:
    """Downloads."""
    folder, version = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requirements.txt").write_text("\n".join(requirements()) + "\n", encoding="utf-8")
    (folder / "constraints.txt").write_text(constraints(), encoding="utf-8")
    platforms = [f"--platform=manylinux_{glibc}_x86_64" for glibc in GLIBC]
    platforms += ["--platform=manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += [f"--python-version={version}", "--implementation=cp", *platforms]
    command += [f"--dest={folder}", f"--constraint={folder / 'constraints.txt'}"]
    subprocess.run([*command, "-r", str(folder / "requirements.txt")], check=True)


if __name__ == "__main__":
    main()
