"""Facts about a run: driver, device, versions, tools, date, commit."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu import children
from tests.gpu.rows import NotHereError

from penstock import __version__
from penstock.model import PenstockError
from penstock_shim import paths

if TYPE_CHECKING:
    from tests.gpu.arena import Arena

TOOLS = ("nvcc", "nvidia-smi", "ncu", "nsys", "compute-sanitizer", "cuda-gdb")
TOOL_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
MODULES = ("torch", "cupy", "triton", "jax", "numba.cuda", "cuda.core")
REPOSITORY = Path(__file__).parents[2]
PYTHONS_VARIABLE = "GPU_CHECK_PYTHONS"  # further interpreters, colon-separated
LONGEST_S = 15.0

FIND = """
import importlib.util, json, sys
import importlib.metadata as metadata
found = {}
for name in sys.argv[1:]:
    try:
        if importlib.util.find_spec(name) is None:
            continue
    except Exception:
        continue
    top = {"numba.cuda": "numba-cuda", "cuda.core": "cuda-core", "cupy": None}.get(name, name)
    names = [top] if top else sorted(
        {one for one in metadata.packages_distributions().get(name, [])}) or [name]
    try:
        found[name] = metadata.version(names[0])
    except metadata.PackageNotFoundError:
        found[name] = "unknown"
print(json.dumps(found))
"""


def tool_path(name: str) -> str | None:
    """Where a CUDA tool lies: on PATH, or where the toolkit puts it."""
    there = shutil.which(name)
    if there:
        return there
    found = (Path(folder) / name for folder in TOOL_FOLDERS)
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)


class Pythons:
    """Interpreters on this machine, and which GPU libraries each one has.

    What tests need lies in one virtual environment, what users compute with often in another.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str]] = {}  # module → interpreter, version
        for python in self._candidates():
            for module, version in _modules(python).items():
                self._found.setdefault(module, (python, version))

    @staticmethod
    def _candidates() -> list[str]:
        named = os.environ.get(PYTHONS_VARIABLE, "").split(":")
        here = Path(sys.executable).parent
        folders = [one for one in os.environ.get("PATH", "").split(":") if Path(one) != here]
        outside = shutil.which("python3", path=":".join(folders))
        own = REPOSITORY / "build" / "torch" / "bin" / "python"  # of `make test-torch`
        with_torch = str(own) if own.exists() else None
        return list(dict.fromkeys(filter(None, [*named, with_torch, outside, sys.executable])))

    def of(self, module: str) -> str | None:
        """The interpreter that has `module`."""
        return self._found[module][0] if module in self._found else None

    def versions(self) -> dict[str, str]:
        """Module → version."""
        return {module: version for module, (_, version) in self._found.items()}


def _modules(python: str) -> dict[str, str]:
    """Module → version, of those that are installed. None is imported, but packages around one.

    One that never comes to an end, or takes the interpreter down, does not hide the others: then
    each is asked after by itself.
    """
    if _asked(python, ()) is None:
        return {}  # the interpreter itself is broken
    found = _asked(python, MODULES)
    if found is not None:
        return found
    alone = {name: _asked(python, (name,)) for name in MODULES}
    return {name: (told or {name: "not told"})[name] for name, told in alone.items() if told != {}}


def _asked(python: str, modules: tuple[str, ...]) -> dict[str, str] | None:
    """Of these modules; None: it did not end, or not well."""
    command = children.Command([python, "-c", FIND, *modules], dict(os.environ))
    try:
        return dict(children.run(command, LONGEST_S).result())
    except (children.FailedError, children.HungError, NotHereError):
        return None
    except OSError:  # no such interpreter
        return {}


def facts_of(arena: Arena, pythons: Pythons, seconds: float) -> dict[str, Any]:
    """The report's head."""
    device = arena.device
    words = f"{device.name}, {device.memory_bytes >> 20} MiB"
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "version": __version__,
        "device": f"simulated {words}" if arena.simulated else words,
        "simulated": arena.simulated,
        **_driver(arena),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),  # of others, before the first row
        "python": platform.python_version(),
        "libraries": pythons.versions(),
        "tools": {name: _version_of(name) for name in TOOLS if tool_path(name)},
        "not_here": [name for name in TOOLS if not tool_path(name)]
        + [name for name in MODULES if pythons.of(name) is None],
        "budget_seconds": seconds,
    }


def _driver(arena: Arena) -> dict[str, Any]:
    """The answers of the driver's libraries, by the same calls as `penstock doctor`."""
    try:
        libraries = arena.source.libraries()
        probe = [str(paths.workload_path("penstock-probe")), "driver"]
        command = arena.native([*probe, libraries.driver, libraries.management])
        done = children.run(command, LONGEST_S)
    except (PenstockError, children.HungError, OSError) as error:
        return {"driver": f"not told: {error}"}
    told = [line.split("\t") for line in done.out.splitlines()]
    facts = {(words[0], words[1]): words[2] for words in told if len(words) == 3}
    version = int(facts.get(("cuda", "version"), 0))
    return {
        "driver": facts.get(("nvml", "driver"), "not told"),
        "driver_cuda": f"{version // 1000}.{version % 1000 // 10}",
    }


def _version_of(tool: str) -> str:
    path = tool_path(tool)
    if path is None:
        return "not here"
    try:
        done = children.run(children.Command([path, "--version"], dict(os.environ)), LONGEST_S)
    except (children.HungError, OSError) as error:
        return str(error)
    lines = [line for line in done.out.splitlines() if "ersion" in line or "release" in line]
    return lines[0].strip() if lines else "unknown"


def _commit() -> str:
    """The commit, and whether files differ from it; from GPU_CHECK_COMMIT where there is no git."""
    if told := os.environ.get("GPU_CHECK_COMMIT"):
        return told
    folder = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"],
            capture_output=True, text=True, timeout=LONGEST_S, check=True,
        ).stdout.strip()  # fmt: skip
        changed = subprocess.run(
            ["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True, text=True, timeout=LONGEST_S, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{head} with changes" if changed else head
