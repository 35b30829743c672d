"""Roots that containers are started on, made from Debian's packages; the large one is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.interposition.support import debian_packages
from tests.support import build_cache

HERE = Path(__file__).parents[1]
CACHE = HERE.parents[1] / "build" / "containers"
PACKAGES = {
    "podman": "podman",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "musl-gcc": "musl-tools",
}


class NotToBeHadError(Exception):
    """Something that a test needs is not available on this machine; the message says why."""


def _run(*command: str | Path, timeout_s: int = 180) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHadError(str(error)) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-300:]
        raise NotToBeHadError(f"`{command[0]}` failed: {said}")


def need(*programs: str) -> None:
    """Installs the packages of those programs that are missing. Raises NotToBeHadError."""
    if os.geteuid() != 0:
        raise NotToBeHadError("real containers and their roots need root")
    missing = [PACKAGES[program] for program in programs if not shutil.which(program)]
    if missing:
        install(*missing)


def install(*packages: str) -> None:
    """Installs packages of Debian's. Raises NotToBeHadError."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NotToBeHadError(f"{', '.join(packages)} must be installed: that needs root and apt")
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    command = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    with build_cache.alone_with(CACHE / "packages"):
        try:
            _run(*command, timeout_s=600)
        except NotToBeHadError:  # a fresh machine has no lists of packages, or old ones
            _run("apt-get", "update", "-qq", timeout_s=300)
            _run(*command, timeout_s=600)


def bullseye() -> Path:
    """Debian 11: glibc 2.31, Python 3.9. Raises NotToBeHadError."""
    return debian_root("bullseye")


def debian_root(suite: str) -> Path:
    """A release of Debian's with its Python and nothing else; kept. Raises NotToBeHadError."""
    root = CACHE / suite
    with build_cache.alone_with(root):
        if not root.is_dir():
            _bootstrap(root, suite)
    return root


def _bootstrap(root: Path, suite: str) -> None:
    need("debootstrap")
    aside = CACHE / f".{suite}-{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    mirror = debian_packages.sources("main")[0].split("] ")[-1].removeprefix("deb ").split()[0]
    include = "--include=python3-minimal,libpython3-stdlib"
    try:
        _run(
            "debootstrap", "--variant=minbase", include, suite, aside, mirror,
            timeout_s=400,
        )  # fmt: skip
        shutil.rmtree(aside / "var/cache/apt/archives")
        aside.rename(root)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


NVIDIA_TOOLKIT = "1.17.8"


def nvidia_hook() -> Path:
    """NVIDIA's own hook program, built from its source. Raises NotToBeHadError."""
    program = CACHE / f"bin/nvidia-cdi-hook-{NVIDIA_TOOLKIT}"
    with build_cache.alone_with(program):
        if not program.exists():
            say = "building NVIDIA's CDI hooks from their source, once: a minute or two"
            print(say, file=sys.stderr, flush=True)
            _build(program)
    return program


def _build(program: Path) -> None:
    if not shutil.which("go"):
        raise NotToBeHadError("NVIDIA's CDI hooks are built with Go, and there is none")
    module = "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"
    folder = program.parent
    folder.mkdir(parents=True, exist_ok=True)
    command = ["env", f"GOBIN={folder}", "go", "install", f"{module}@v{NVIDIA_TOOLKIT}"]
    _run(*command, timeout_s=600)
    (folder / "nvidia-cdi-hook").rename(program)


def static_only(root: Path) -> Path:
    """One static program, Debian's busybox, and no library at all. Raises NotToBeHadError."""
    try:
        busybox = debian_packages.find(CACHE / "busybox", "busybox-static", "main", "bin/busybox")
    except debian_packages.NotToBeHadError as error:
        raise NotToBeHadError(str(error)) from error
    _folders(root)
    shutil.copy(busybox, root / "bin/busybox")
    return root


def musl(root: Path) -> Path:
    """Musl's loader and one program linked with it. Raises NotToBeHadError."""
    need("musl-gcc")
    _folders(root)
    loader = root / "lib/ld-musl-x86_64.so.1"
    loader.parent.mkdir()
    shutil.copy("/usr/lib/x86_64-linux-musl/libc.so", loader)
    loader.chmod(0o755)
    _run("musl-gcc", "-O1", "-o", root / "bin/look", HERE / "programs/look.c")
    return root


def distroless(root: Path) -> Path:
    """The host's glibc, one program, and a preload of the image's own: no shell, no package."""
    _folders(root)
    libraries = root / "lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (root / "lib64").mkdir()
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    shutil.copy(loader.resolve(), root / "lib64" / loader.name)
    for name in ("libc.so.6", "libdl.so.2", "libpthread.so.0"):
        shutil.copy(Path("/lib/x86_64-linux-gnu", name).resolve(), libraries / name)
    _run("gcc", "-O1", "-o", root / "bin/look", HERE / "programs/look.c", "-ldl")
    own = "-shared", "-fPIC", HERE / "programs/own_preload.c"
    _run("gcc", *own, "-o", root / "opt/libown.so")
    (root / "etc/ld.so.preload").write_text("# this image's own\n/opt/libown.so\n")
    return root


def _folders(root: Path) -> None:
    for folder in ("bin", "etc", "opt"):
        (root / folder).mkdir()
