"""The doctor on machines with real faults, each made for the test."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from penstock_shim import paths

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 120


@dataclass
class Report:
    """The doctor's output."""

    code: int
    findings: list[dict[str, str]]

    def of(self, check: str) -> list[dict[str, str]]:
        return [one for one in self.findings if one["check"] == check]

    def one(self, check: str) -> dict[str, str]:
        found = self.of(check)
        assert len(found) == 1, found or self.findings
        return found[0]


@pytest.fixture
def state(tmp_path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def raw_doctor(state):
    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "LD_"))}
        return subprocess.run(
            [sys.executable, "-m", "penstock", "doctor", *words],
            env={**kept, "PENSTOCK_STATE_DIR": str(state), **environment},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    return run


@pytest.fixture
def doctor(raw_doctor):
    def run(*words: str, **environment: str) -> Report:
        done = raw_doctor("-o", "json", *words, **environment)
        assert done.returncode in (0, 1), done.stderr
        report = json.loads(done.stdout)
        assert report["ok"] == (done.returncode == 0)
        for one in report["findings"]:
            assert one["status"] in ("ok", "warning", "failure")
            assert one["seen"]
            assert bool(one["advice"]) == (one["status"] != "ok"), one
        return Report(done.returncode, report["findings"])

    return run


@pytest.fixture
def compile_c(tmp_path):
    def compile_program(text: str, name: str, *options: str, compiler: str = "gcc") -> Path:
        source, output = tmp_path / f"{name}.c", tmp_path / name
        source.write_text(text)
        subprocess.run([compiler, "-o", output, source, *options], check=True)
        return output

    return compile_program


@pytest.fixture
def driver(tmp_path, compile_c):
    """A folder with a driver that has just these functions, each answering 0, and cuInit `init`.

    `version`: of the file's name, as its vendor gives it; `text`: more C.
    """

    def make(*functions: str, init: int = 100, version: str = "", text: str = "") -> Path:
        folder = tmp_path / f"driver{version}"
        folder.mkdir()
        more = text
        text = f"int cuInit(unsigned flags) {{ (void)flags; return {init}; }}\n"
        text += "int cuDriverGetVersion(int *v) { *v = 12020; return 0; }\n"
        text += "".join(f"int {name}(void) {{ return 0; }}\n" for name in functions)
        text += more
        library = compile_c(text, "libdriver.so", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
        shutil.move(library, folder / f"libcuda.so.{version or 1}")
        if version:
            (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
        return folder

    return make


@pytest.fixture
def musl_gcc() -> str:
    """Debian's musl compiler, installed for the test where that is possible."""
    if not shutil.which("musl-gcc"):
        command = ["apt-get", "install", "-y", "-qq", "musl-tools"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
            reason = (done.stderr or done.stdout).strip()[-200:]
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
        if not shutil.which("musl-gcc"):
            pytest.skip(f"musl-tools is not to be had: {reason}")
    return "musl-gcc"


@pytest.fixture(scope="session")
def shim_names() -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", paths.so_path()], capture_output=True, text=True, check=True
    ).stdout
    return {name for line in listing.splitlines() if re.match(r"cu[A-Z]", name := line.split()[-1])}
