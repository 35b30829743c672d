"""Builds the C tests once a session, with each sanitizer, and runs every test as an item.

A C file names the builds that its tests run under in its first line: `/* builds: plain address */`.
plain is compiled as the product is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = {"plain": "", "address": "address,undefined", "thread": "thread"}
SKIPPED = 77


def _cases():
    for source in sorted(Path(__file__).parent.glob("test_*.c")):
        text = source.read_text()
        builds = re.match(r"/\* builds: ([a-z ]+) \*/", text).group(1).split()
        for sentence in re.findall(r"^TEST\((\w+)\)", text, flags=re.MULTILINE):
            for build in builds:
                yield pytest.param(
                    source.stem, sentence, build, id=f"{source.stem[5:]}-{sentence}-{build}"
                )


def _tool(name):
    beside_python = Path(sys.executable).with_name(name)
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    assert found, f"{name} is needed to build the C tests: pip install {name}"
    return found


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return "" if done.returncode == 0 else f"{command}:\n{done.stdout}\n{done.stderr}"


def _build(name):
    """The directory of the executables, and what went wrong."""
    directory = ROOT / "build" / f"native-tests-{name}"
    wrong = _run(
        _tool("cmake"), "-S", ROOT, "-B", directory, "-G", "Ninja", "-DPENSTOCK_TESTS=ON",
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", f"-DPython_EXECUTABLE={sys.executable}",
        f"-DPENSTOCK_SANITIZE={SANITIZERS[name]}",
    )  # fmt: skip
    wrong = wrong or _run(
        _tool("cmake"), "--build", directory, "--target", "native_tests", "-j", "2"
    )
    return directory / "tests" / "native", wrong


@pytest.fixture(scope="session")
def built():
    """Gives the directory of one build's executables, building on first use, also if that fails."""
    done = {}

    def build(name):
        if name not in done:
            done[name] = _build(name)
        directory, wrong = done[name]
        assert not wrong, wrong
        return directory

    return build


@pytest.mark.parametrize(("program", "sentence", "build"), list(_cases()))
def test_native(built, tmp_path, program, sentence, build):
    executable = built(build) / program
    done = subprocess.run(
        [executable, sentence],
        cwd=tmp_path,
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr[-8000:]
