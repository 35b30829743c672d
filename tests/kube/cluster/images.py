"""Images for the nodes, as files that `ctr images import` takes: nothing is ever pulled."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.containers.support import images as containers
from tests.kube.cluster import NotToBeHadError, toolchain
from tests.support import build_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
KEPT = toolchain.PROJECT / "build" / "kube" / "images"
PAUSE = "penstock.test/pause:1"
DEBIAN = "penstock.test/debian:1"  # Python, no compiler; the host's release where that is Debian
PENSTOCK = "penstock.test/penstock:1"  # this tree, by deploy/image/Containerfile
SCHEDULER = "penstock.test/kube-scheduler:1"
LEFT_OUT = ("var/lib/apt/lists", "var/cache", "usr/share/doc", "usr/share/locale", "usr/share/man")


def pause() -> Path:
    """One static program of the project's own. Raises NotToBeHadError."""
    digest = hashlib.sha256((HERE / "pause.c").read_bytes()).hexdigest()[:12]
    image = KEPT / f"pause-{digest}.tar"
    with build_cache.alone_with(image):
        if not image.exists():
            layer = KEPT / f".pause-{os.getpid()}.tar"
            program = KEPT / f".pause-{os.getpid()}"
            try:
                _run("gcc", "-O1", "-static", "-o", program, HERE / "pause.c")
                with tarfile.open(layer, "w") as tar:
                    tar.add(program, "pause")
                pack(layer, image, PAUSE, {"Entrypoint": ["/pause"]})
            finally:
                layer.unlink(missing_ok=True)
                program.unlink(missing_ok=True)
    return image


def debian() -> Path:
    """A Debian with Python, of the host's own release. Raises NotToBeHadError."""
    suite = _suite()
    image = KEPT / f"debian-{suite}.tar"
    with build_cache.alone_with(image):
        if not image.exists():
            try:
                root = containers.debian_root(suite)
            except containers.NotToBeHadError as error:
                raise NotToBeHadError(f"no Debian image: {error}") from error
            for left in KEPT.glob(".debian-*.tar"):  # by a start that was killed
                left.unlink()
            layer = KEPT / f".debian-{os.getpid()}.tar"
            without = [f"--exclude=./{path}/*" for path in (*LEFT_OUT, "dev", "proc", "sys")]
            try:
                _run("tar", "-C", root, *without, "--numeric-owner", "-cf", layer, ".")
                pack(layer, image, DEBIAN, {"Cmd": ["/bin/sh"]})
            finally:
                layer.unlink(missing_ok=True)
    return image


def penstock() -> Path:
    """This tree's own image, built from its Containerfile. Raises NotToBeHadError."""
    image = KEPT / f"penstock-{_tree()}.tar"
    with build_cache.alone_with(image):
        if not image.exists():
            _penstock(image)
    return image


def kube_scheduler(programs: Path) -> Path:
    """The stock scheduler alone, as its own project's image has it. Raises NotToBeHadError."""
    image = KEPT / f"kube-scheduler-{programs.name}.tar"
    with build_cache.alone_with(image):
        if not image.exists():
            layer = KEPT / f".scheduler-{os.getpid()}.tar"
            try:
                with tarfile.open(layer, "w") as tar:
                    tar.add(programs / "kube-scheduler", "usr/local/bin/kube-scheduler")
                pack(layer, image, SCHEDULER, {"Entrypoint": ["kube-scheduler"]})
            finally:
                layer.unlink(missing_ok=True)
    return image


SOURCES = (  # what .containerignore lets through
    "controller", "deploy/image", "examples", "proto", "shim", ".containerignore", "CMakeLists.txt",
    "constraints.txt", "pyproject.toml", "LICENSE", "README.md",
)  # fmt: skip
BASE = "localhost/penstock-base"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
KEPT_BELOW = "usr/local/share/this-machine.crt"
# No runtime, and no network of its own: all that is needed here is root.
PODMAN_BUILD = (
    "podman", "--cgroup-manager", "cgroupfs", "build", "--isolation", "chroot", "--network", "host",
    "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000", "--layers=false", "--pull=never",
)  # fmt: skip


def _tree() -> str:
    digest = hashlib.sha256((HERE / "images.py").read_bytes())
    for name in SOURCES:
        place = toolchain.PROJECT / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _penstock(image: Path) -> None:
    """By the Containerfile, from a Debian of this machine's packages: no registry is asked."""
    for old in KEPT.glob("penstock-*.tar"):  # of other trees: nobody asks for them again
        old.unlink()
    aside = KEPT / f".penstock-{os.getpid()}.tar"
    name = f"localhost/penstock:{_tree()}"
    try:
        containers.need("podman")
        with _base(containers.debian_root(_suite())) as base:
            file = toolchain.PROJECT / "deploy/image/Containerfile"
            arguments = ("--build-arg", f"DEBIAN={base}", "--file", file, "--tag", name)
            _run(*PODMAN_BUILD, *arguments, toolchain.PROJECT, within_s=900)
        _run("podman", "tag", name, PENSTOCK)
        _run("podman", "save", "--format", "docker-archive", "--output", aside, PENSTOCK)
        aside.rename(image)
    except containers.NotToBeHadError as error:
        raise NotToBeHadError(f"no image of this tree: {error}") from error
    finally:
        aside.unlink(missing_ok=True)
        _forget(name, PENSTOCK)


@contextlib.contextmanager
def _base(root: Path) -> Iterator[str]:
    """What stands for Debian's image and for its slim one, and trusts whom this machine trusts."""
    base = f"{BASE}:{os.getpid()}"
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        layer, trees, change = Path(folder, "layer.tar"), ["-C", root, "."], []
        if CERTIFICATES.exists():
            trusted = Path(folder, KEPT_BELOW)
            trusted.parent.mkdir(parents=True)
            shutil.copy(CERTIFICATES, trusted)
            trees += ["-C", folder, f"./{KEPT_BELOW}"]
            change = ["--change", f"ENV PIP_CERT=/{KEPT_BELOW}"]
        without = [f"--exclude=./{path}/*" for path in ("dev", "proc", "sys")]
        _run("tar", *without, "--numeric-owner", "-cf", layer, *trees)
        _run("podman", "import", *change, layer, base)
    _run("podman", "tag", base, f"{base}-slim")
    try:
        yield base
    finally:
        _forget(base, f"{base}-slim")


def _forget(*names: str) -> None:
    """Takes images out of podman's store, if they are there."""
    command = ["podman", "rmi", "--force", "--ignore", *names]
    subprocess.run(command, capture_output=True, timeout=120, check=False)


def pack(layer: Path, image: Path, name: str, config: dict[str, object]) -> None:
    """Writes the docker-format file `image` with one layer (a tar file), known as `name`."""
    diff = f"sha256:{_digest(layer)}"
    path = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    described = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
            "os": "linux",
            "config": {"Env": path, **config},
            "rootfs": {"type": "layers", "diff_ids": [diff]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    aside = image.with_name(f".{image.name}-{os.getpid()}")
    try:
        with tarfile.open(aside, "w") as tar:
            _add(tar, "manifest.json", json.dumps(manifest).encode())
            _add(tar, "config.json", described)
            tar.add(layer, "layer.tar")
        aside.rename(image)
    finally:
        aside.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _suite() -> str:
    release = Path("/etc/os-release")
    text = release.read_text() if release.exists() else ""
    found = re.search(r"^VERSION_CODENAME=(\w+)$", text, re.MULTILINE)
    return found[1] if found and re.search(r"^ID=debian$", text, re.MULTILINE) else "bookworm"


def _run(*command: str | Path, within_s: int = 300) -> None:
    if not shutil.which(str(command[0])):
        raise NotToBeHadError(f"images for the nodes need `{command[0]}`")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # whose pip, whose cmake
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=within_s, check=False,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    if done.returncode:
        raise NotToBeHadError(f"`{command[0]}` failed: {done.stderr.strip()[-300:]}")
