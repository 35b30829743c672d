"""This release and the next one as wheels, and a place of their own to install them into."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
CACHE = ROOT / "build" / "upgrade"
NEXT = "0.999.0"
# What the build reads; a copy is built, so that only what changed since the last time is compiled.
SOURCES = ("shim", "controller", "proto", "examples", "CMakeLists.txt", "pyproject.toml",
           "README.md", "LICENSE")  # fmt: skip
ABI = re.compile(r"(#define PENSTOCK_ABI_VERSION) (\d+)")
OLDEST = re.compile(r"(#define PENSTOCK_ABI_OLDEST) (\d+)")


def this_version() -> str:
    return importlib.metadata.version("penstock")


def this_wheel(folder: Path) -> Path:
    """The installed package as a wheel again."""
    version = this_version()
    file = folder / f"penstock-{version}-py3-none-any.whl"
    packages = Path(sysconfig.get_path("purelib"))
    record = []
    with zipfile.ZipFile(file, "w") as wheel:
        for path in importlib.metadata.files("penstock"):
            name = str(path)
            generated = name.endswith((".pyc", "/RECORD", "/INSTALLER", "/REQUESTED", "_url.json"))
            if generated or name.startswith(".."):
                continue
            content = (packages / name).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (packages / name).stat().st_mode << 16
            wheel.writestr(entry, content)
            record.append(f"{name},sha256={digest.decode()},{len(content)}")
        name = f"penstock-{version}.dist-info/RECORD"
        wheel.writestr(name, "\n".join([*record, f"{name},,"]) + "\n")
    return file


def next_wheel() -> Path:
    """A wheel of this tree as the next release, with the next version of both pages."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with _alone(CACHE / "lock"):
        source, wheels = CACHE / "source", CACHE / "wheels"
        for name in SOURCES:
            _follow(ROOT / name, source / name)
        shutil.rmtree(wheels, ignore_errors=True)
        # The file is built where the package index does not matter: tools are those of this run.
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        command += ["--no-build-isolation", f"--wheel-dir={wheels}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        (wheel,) = wheels.iterdir()
        assert wheel.name.startswith(f"penstock-{NEXT}-")
        return wheel


def next_abi() -> int:
    found = ABI.search((ROOT / "shim/native/abi/quota.h").read_text())
    return int(found[2]) + 1


def _as_next(file: Path) -> bytes:
    content = file.read_bytes()
    name = file.relative_to(ROOT).as_posix()
    version = this_version()
    if name == "pyproject.toml":
        return content.replace(f'version = "{version}"'.encode(), f'version = "{NEXT}"'.encode(), 1)
    if name == "controller/penstock/__init__.py":
        return content.replace(version.encode(), NEXT.encode())
    if name == "shim/native/abi/quota.h":
        newer = ABI.sub(rf"\1 {next_abi()}", content.decode())
        return OLDEST.sub(rf"\1 {next_abi() - 1}", newer).encode()
    return content


def _follow(original: Path, copy: Path) -> None:
    """Copies changed files to `copy`; unchanged ones keep their times."""
    if original.is_file():
        content = _as_next(original)
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            shutil.copymode(original, copy)
        return
    entries = {entry.name for entry in original.iterdir() if entry.name != "__pycache__"}
    if copy.is_dir():
        for gone in {entry.name for entry in copy.iterdir()} - entries:
            path = copy / gone
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in sorted(entries):
        _follow(original / name, copy / name)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Installation:
    """A virtual environment with its own penstock, which uses the other packages of ours."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        others = folder / "dependencies"  # without our penstock, which pip would take for its own
        others.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith("penstock"):
                (others / entry.name).symlink_to(entry)
        (self.packages / "dependencies.pth").write_text(f"{others}\n")

    def install(self, wheel: Path) -> None:
        """With pip, over whatever is installed."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        command += ["--no-deps", "--no-index", "--upgrade", str(wheel)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    @property
    def shim(self) -> Path:
        return self.packages / "penstock_shim" / "lib" / "libpenstock.so"
