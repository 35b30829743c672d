"""`python -m penstock_shim` tells where the installed libraries lie."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock_shim import __main__, paths


def ask(*options):
    return subprocess.run(
        [sys.executable, "-m", "penstock_shim", *options],
        capture_output=True,
        text=True,
        check=False,
    )


def soname(path):
    """DT_SONAME, as `readelf -d` prints it."""
    output = subprocess.run(
        ["readelf", "-d", path], capture_output=True, text=True, check=True
    ).stdout
    return output.partition("Library soname: [")[2].partition("]")[0]


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--so-path", "libcuda.so.1"), ("--nvml-so-path", "libnvidia-ml.so.1")],
)
def test_the_command_prints_the_library_that_stands_in_for_the_drivers(option, expected):
    done = ask(option)
    assert (done.returncode, done.stderr) == (0, "")
    assert soname(done.stdout.strip()) == expected


def test_the_command_prints_the_directory_of_the_simulated_driver():
    directory = ask("--sim-dir").stdout.strip()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        assert soname(f"{directory}/{name}") == name


def test_a_wrong_or_missing_question_is_an_error_of_use():
    assert ask().returncode == 2
    assert ask("--so-path", "--sim-dir").returncode == 2


def test_an_installation_without_native_parts_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path)
    assert __main__.main(["--so-path"]) == 1
    assert "install the package with pip" in capsys.readouterr().err
