"""Programs that import torch, each in a process of its own or in a fork of one that has done so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003

_SERVER = """
import json, os, signal, sys, tempfile, torch
for line in sys.stdin:
    code, variables = json.loads(line)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            signal.alarm(120)
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ.update(variables)
            status = 0
            try:
                exec(code, {"__name__": "__main__"})
            except BaseException:
                sys.excepthook(*sys.exc_info())
                status = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        errors.seek(0)
        print(json.dumps([status, out.read(), errors.read()]), flush=True)
"""
_BROKEN = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise {error}("this part is broken")
sys.meta_path.insert(0, Finder())
"""
_EXTENSION = """
import sys
def load():
    import torch
    torch.utils.rename_privateuse1_backend("other")
"""


@dataclass
class Outcome:
    """How a program ended, and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """What it printed; it must have ended well, without a word on standard error."""
        assert (self.status, self.stderr) == (0, ""), self.stderr
        return self.stdout.splitlines()


def run(code: str, *options: str, **variables: str) -> Outcome:
    """Runs a program in a process of its own, without a card unless the variables say so."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env=_environment(variables), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


def _environment(variables: dict[str, str]) -> dict[str, str]:
    own = {"PENSTOCK_CARD", "TORCH_DEVICE_BACKEND_AUTOLOAD", "PYTHONPATH"}
    return {**{name: os.environ[name] for name in os.environ.keys() - own}, **variables}


class ForkServer:
    """A process that has imported torch without extensions, and runs programs in forks of it.

    So a program takes no second to import torch. It calls what `import torch` calls by itself.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _SERVER],
            env=_environment({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, code: str, **variables: str) -> Outcome:
        """Runs a program, to whose environment the variables are added."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps([code, variables]), file=self._process.stdin, flush=True)
        return Outcome(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=30)


def broken(folder: Path, module: str, error: str) -> str:
    """A PYTHONPATH with which the import of a module raises an error."""
    text = _BROKEN.format(module=module, error=error)
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return str(folder)


def other_extension(folder: Path, *, first: bool) -> str:
    """A PYTHONPATH with another extension of torch that wants the same place.

    torch loads extensions in the order of sys.path.
    """
    packages = folder / "packages"
    about = packages / "other_extension-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-extension\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nother = other_extension:load\n")
    (packages / "other_extension.py").write_text(_EXTENSION)
    if first:
        return str(packages)
    (folder / "sitecustomize.py").write_text(f"import sys; sys.path.append({str(packages)!r})\n")
    return str(folder)
