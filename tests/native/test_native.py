"""Builds the C tests once a session, with each sanitizer, and runs every test as an item.

A C file names the builds that its tests run under in its first line: `/* builds: plain address */`.
plain is compiled as the product is.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.native.support import builds

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


@pytest.fixture(scope="session")
def built():
    """Gives the directory of one build's executables, building on first use, also if that fails."""
    failed = {}

    def build(name):
        try:
            if name not in failed:
                return builds.build(name, "native_tests") / "tests" / "native"
        except builds.BuildError as error:
            failed[name] = str(error)
        raise AssertionError(failed[name])

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
        timeout=1200,
        check=False,
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr[-8000:]
    print(done.stdout, end="")
