"""Images for the nodes, as files that `ctr images import` takes: nothing is ever pulled."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests import kept
from tests.containers import images as containers
from tests.kube.cluster import NotToBeHadError, toolchain

HERE = Path(__file__).parent
KEPT = toolchain.PROJECT / "build" / "kube" / "images"
PAUSE = "penstock.test/pause:1"
DEBIAN = "penstock.test/debian:1"  # Python, no compiler; the host's release where that is Debian
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise NotToBeHadError(f"`{command[0]}` failed: {done.stderr.strip()[-300:]}")
