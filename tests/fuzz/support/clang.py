"""A clang with libFuzzer: the installed one, or Debian's unpacked beside the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class NotToBeHadError(Exception):
    """There is no clang with libFuzzer on this machine; the message says why."""


@dataclass(frozen=True)
class Clang:
    """A compiler, and the variables that it needs to run."""

    path: str
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *words: object) -> None:
        """Compile. Raises RuntimeError with the compiler's message."""
        command = [self.path, *map(str, words)]
        environment = {**os.environ, **self.variables}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")


def _can_fuzz(clang: Clang, folder: Path) -> bool:
    source = folder / "can_fuzz.c"
    source.write_text("int LLVMFuzzerTestOneInput(const char *d, long n) { return 0 * n * *d; }\n")
    try:
        clang.run("-fsanitize=fuzzer,address", source, "-o", folder / "can_fuzz")
    except (RuntimeError, OSError):
        return False
    return True


def _output(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=180, check=False
    )
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise NotToBeHadError(
            f"`{' '.join(command[:2])} …` failed: {reason[-1] if reason else '?'}"
        )
    return done.stdout


def _download(folder: Path) -> None:
    """Everything of Debian's clang that this machine lacks, and its sanitizers' runtimes."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NotToBeHadError("this is no Debian: apt-get and dpkg are needed to fetch clang")
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    options = [
        f"-oDir::State::lists={folder}/lists",
        f"-oDir::Cache::archives={folder}/archives",
        f"-oDir::Cache::pkgcache={folder}/pkgcache.bin",
        f"-oDir::Cache::srcpkgcache={folder}/srcpkgcache.bin",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::Languages=none",
    ]
    _output("apt-get", "update", *options, cwd=folder)
    simulate = ["apt-get", "install", "--simulate", "--no-install-recommends", *options]
    clang = re.search(r"^Inst clang-(\d+) ", _output(*simulate, "clang", cwd=folder), re.MULTILINE)
    if not clang:
        raise NotToBeHadError("apt-get knows no package clang, or the installed one cannot fuzz")
    wanted = [f"clang-{clang[1]}", f"libclang-rt-{clang[1]}-dev"]
    packages = re.findall(r"^Inst (\S+)", _output(*simulate, *wanted, cwd=folder), re.MULTILINE)
    _output("apt-get", "download", *options, *packages, cwd=folder)
    for package in folder.glob("*.deb"):
        _output("dpkg", "-x", str(package), str(folder / "unpacked"), cwd=folder)
        package.unlink()
    shutil.rmtree(folder / "lists")


def _unpacked(folder: Path) -> Clang | None:
    root = folder / "unpacked"
    found = sorted(root.glob("usr/lib/llvm-*/bin/clang"))
    if not found:
        return None
    libraries = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("usr/lib/llvm-*/lib")]
    return Clang(str(found[0]), {"LD_LIBRARY_PATH": ":".join(map(str, libraries))})


def find(cache: Path) -> Clang:
    """The compiler, fetched into `cache` on first use.

    Raises:
        NotToBeHadError: with the reason.
    """
    cache.mkdir(parents=True, exist_ok=True)
    for name in ("clang", *(f"clang-{version}" for version in range(22, 13, -1))):
        path = shutil.which(name)
        if path and _can_fuzz(Clang(path), cache):
            return Clang(path)
    try:
        clang = _unpacked(cache)
        if not clang:
            _download(cache)
            clang = _unpacked(cache)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHadError(str(error)) from error
    if not clang or not _can_fuzz(clang, cache):
        raise NotToBeHadError("the fetched clang cannot build a libFuzzer program")
    return clang
