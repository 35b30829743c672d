"""A virtual environment with torch: python -m tests.support.torch_environment FOLDER [RELEASE].

PyPI has torch for x86-64 with CUDA's libraries only. These are 5 GB, and of other releases than
those that Penstock is built with, so that torch has an environment of its own. What was in the
folder goes first: after an installation that was interrupted, nobody knows what is missing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOM_BYTES = 10 * 10**9  # 6.0 GB installed, and 2.6 GB of downloads meanwhile
PINS = "constraints-torch.txt"
# What a release of torch pins.
OF_A_RELEASE = re.compile(r"(torch|triton|nvidia-|cuda-|setuptools)")


def make(folder: Path, release: str | None = None) -> None:
    """Makes the environment; with a release such as "2.13", its newest one in place of the pinned.

    Raises:
        SystemExit: the disk has no room for it.
        subprocess.CalledProcessError: the installation failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < ROOM_BYTES:
        sys.exit(
            f"no room for torch: {folder} needs {ROOM_BYTES / 1e9:.0f} GB, of which 6 GB stay, and "
            f"its disk has {free_bytes / 1e9:.1f} GB free: free some there, or make build a link "
            "to a folder on another disk"
        )
    wanted = ["--group", "torch", "--constraint", PINS]
    if release is not None:
        pins = Path(PINS).read_text(encoding="utf-8").splitlines()
        others = folder / PINS
        kept = [pin for pin in pins if not OF_A_RELEASE.match(pin)]
        others.write_text("\n".join([*kept, f"torch=={release}.*", ""]), encoding="utf-8")
        wanted = ["--group", "torch", "--constraint", str(others)]
    pip = folder / "bin" / "pip"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([pip, "install", "--quiet", "--upgrade", "pip"], check=True)  # knows --group
    subprocess.run([pip, "install", "--quiet", *wanted], check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), *sys.argv[2:3])
