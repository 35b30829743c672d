"""Virtual environments with packages of others, beside the torch that this interpreter has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build"  # which git ignores


def python_with(name: str, packages: list[str]) -> Path:
    """The interpreter of an environment that has these packages; it is made if it has not.

    Raises:
        subprocess.CalledProcessError: pip cannot install them.
    """
    import torch

    folder, wanted = BUILD / f"bench-{name}", "\n".join(packages)
    python, done = folder / "bin" / "python", folder / "packages"
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n", encoding="utf-8")
    pins = Path(__file__).parents[1] / "constraints-torch.txt"  # so that torch stays as it is
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", pins, *packages]
    subprocess.run(command, check=True, stdout=sys.stderr)
    done.write_text(wanted, encoding="utf-8")
    return python
