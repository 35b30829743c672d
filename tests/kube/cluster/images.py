"""Images for the nodes, as files that `ctr images import` takes: nothing is ever pulled."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests import kept
from tests.containers import images as containers
from tests.kube.cluster import NotToBeHadError, toolchain

HERE = Path(__file__).parent
KEPT = toolchain.PROJECT / "build" / "kube" / "images"
PAUSE = "penstock.test/pause:1"
DEBIAN = "penstock.test/debian:1"  # Python, no compiler; the host's release where that is Debian
PENSTOCK = "penstock.test/penstock:1"  # this tree, as deploy/image/build.sh installs it
SCHEDULER = "penstock.test/kube-scheduler:1"
LEFT_OUT = ("var/lib/apt/lists", "var/cache", "usr/share/doc", "usr/share/locale", "usr/share/man")


def pause() -> Path:
    """One static program of the project's own. Raises NotToBeHadError."""
    digest = hashlib.sha256((HERE / "pause.c").read_bytes()).hexdigest()[:12]
    image = KEPT / f"pause-{digest}.tar"
    with kept.alone_with(image):
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
    with kept.alone_with(image):
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
    """This tree's own image, by the Containerfile's own steps. Raises NotToBeHadError."""
    image = KEPT / f"penstock-{_tree()}.tar"
    with kept.alone_with(image):
        if not image.exists():
            _penstock(image)
    return image


def kube_scheduler(programs: Path) -> Path:
    """The stock scheduler alone, as its own project's image has it. Raises NotToBeHadError."""
    image = KEPT / f"kube-scheduler-{programs.name}.tar"
    with kept.alone_with(image):
        if not image.exists():
            layer = KEPT / f".scheduler-{os.getpid()}.tar"
            try:
                with tarfile.open(layer, "w") as tar:
                    tar.add(programs / "kube-scheduler", "usr/local/bin/kube-scheduler")
                pack(layer, image, SCHEDULER, {"Entrypoint": ["kube-scheduler"]})
            finally:
                layer.unlink(missing_ok=True)
    return image


BUILD = toolchain.PROJECT / "deploy/image/build.sh"
SOURCES = ("controller", "proto", "shim", "CMakeLists.txt", "constraints.txt", "pyproject.toml")


def _tree() -> str:
    digest = hashlib.sha256(BUILD.read_bytes() + (HERE / "images.py").read_bytes())
    for name in SOURCES:
        place = toolchain.PROJECT / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _penstock(image: Path) -> None:
    suite = _suite()
    work = KEPT / f".penstock-{os.getpid()}"
    for left in KEPT.glob("[.]penstock-*"):  # by a start that was killed
        if left.is_dir():
            shutil.rmtree(left)
    for old in KEPT.glob("penstock-*.tar"):  # of other trees: nobody asks for them again
        old.unlink()
    root, wheels, layer = work / "root", work / "root/wheels", work / "layer.tar"
    try:
        kept_root = containers.debian_root(suite)
        here = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        if not (kept_root / "usr/bin" / here).exists():
            raise NotToBeHadError(f"no image of this tree: Debian's {suite} has no {here}")
        work.mkdir()
        _run("cp", "--archive", "--reflink=auto", kept_root, root)
        _run(BUILD, "wheels", toolchain.PROJECT, wheels, "--no-build-isolation")
        shutil.copy(BUILD, root)
        _run("chroot", root, "/build.sh", "install", "/wheels")
        shutil.rmtree(wheels)
        (root / "build.sh").unlink()
        without = [f"--exclude=./{path}/*" for path in (*LEFT_OUT, "dev", "proc", "sys")]
        _run("tar", "-C", root, *without, "--numeric-owner", "-cf", layer, ".")
        pack(layer, image, PENSTOCK, IMAGE_CONFIG)
    except containers.NotToBeHadError as error:
        raise NotToBeHadError(f"no image of this tree: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


# As the Containerfile ends.
IMAGE_CONFIG: dict[str, object] = {
    "Entrypoint": ["penstock"],
    "User": "65532:65532",
    "Env": [
        "PATH=/opt/penstock/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONDONTWRITEBYTECODE=1",
    ],
}


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


def _run(*command: str | Path) -> None:
    if not shutil.which(str(command[0])):
        raise NotToBeHadError(f"images for the nodes need `{command[0]}`")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # whose pip, whose cmake
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    if done.returncode:
        raise NotToBeHadError(f"`{command[0]}` failed: {done.stderr.strip()[-300:]}")
