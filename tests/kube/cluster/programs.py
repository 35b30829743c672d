"""The cluster's programs, built from Go modules at the versions that `go/*/go.mod` names.

They are built once and kept below build/kube/bin, in a folder named by what they were built from.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.containers.support import images as containers
from tests.kube.cluster import NotToBeHadError, toolchain
from tests.support import build_cache

MODULES = Path(__file__).parent / "go"
KEPT = toolchain.PROJECT / "build" / "kube" / "bin"
VERSION = "-X k8s.io/component-base/version."
SLOWEST_S = 1200  # one program, on two cores that others use as well


@dataclass(frozen=True)
class Program:
    """One `go build`; `module` is a folder of `go/`, `tags` and `cgo` its authors' own choice."""

    name: str
    module: str
    package: str
    tags: str = ""
    cgo: bool = False


def _kubernetes(name: str) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}")


def _containerd(name: str) -> Program:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    return Program(name, "runtime", package, tags="no_btrfs,no_devmapper")


PROGRAMS = (
    Program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    _kubernetes("kubectl"),
    Program("coredns", "dns", "."),  # with the plugins that `main.go` there names
    Program("helm", "kubernetes", "helm.sh/helm/v3/cmd/helm"),
    _containerd("containerd"),
    _containerd("containerd-shim-runc-v2"),
    _containerd("ctr"),
    Program("runc", "runtime", "github.com/opencontainers/runc", tags="seccomp", cgo=True),
)


def build() -> Path:
    """The folder with all of PROGRAMS; the first time takes minutes, and says how far it is.

    Raises:
        NotToBeHadError: a program cannot be built here; the reason is the compiler's own.
    """
    go = toolchain.find(toolchain.needed([*MODULES.glob("*/go.mod")]))
    folder = KEPT / _key(go)
    with build_cache.alone_with(folder):
        missing = [program for program in PROGRAMS if not (folder / program.name).exists()]
        if missing:
            _build_all(go, folder, missing)
        _drop_older(folder)
    return folder


def kubernetes_version() -> str:
    """The release of Kubernetes that go.mod names, such as v1.36.3."""
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (MODULES / "kubernetes/go.mod").read_text())
    if not found:
        raise NotToBeHadError("go/kubernetes/go.mod names no version of k8s.io/kubernetes")
    return found[1]


def _key(go: Path) -> str:
    digest = hashlib.sha256(repr((toolchain.version(go), PROGRAMS)).encode())
    for path in sorted([*MODULES.glob("*/go.*"), *MODULES.glob("*/*.go")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _build_all(go: Path, folder: Path, missing: list[Program]) -> None:
    if any(program.cgo for program in missing):
        _need_seccomp()
    folder.mkdir(parents=True, exist_ok=True)
    say = f"building {len(missing)} programs of a Kubernetes cluster, once"
    print(f"{say}: ten minutes on two cores the first time", file=sys.stderr, flush=True)
    for at, program in enumerate(missing, start=1):
        began = time.monotonic()
        _build(go, folder, program)
        size_mb = (folder / program.name).stat().st_size >> 20
        took = f"{time.monotonic() - began:.0f} s, {size_mb} MiB"
        print(f"  {at}/{len(missing)} {program.name}: {took}", file=sys.stderr, flush=True)


def _build(go: Path, folder: Path, program: Program) -> None:
    for left in folder.glob(f".{program.name}-*"):  # by a build that was killed
        left.unlink()
    aside = folder / f".{program.name}-{os.getpid()}"
    flags = f"-s -w {VERSION}gitVersion={kubernetes_version()}"
    command = [str(go), "build", "-trimpath", "-ldflags", flags]
    if program.tags:
        command += ["-tags", program.tags]
    try:
        done = subprocess.run(
            [*command, "-o", str(aside), program.package],
            cwd=MODULES / program.module,
            env={**os.environ, "CGO_ENABLED": "01"[program.cgo], "GOTOOLCHAIN": "local"},
            capture_output=True, text=True, timeout=SLOWEST_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NotToBeHadError(f"{program.name} was not built: {done.stderr.strip()[-400:]}")
        aside.rename(folder / program.name)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHadError(f"{program.name} was not built: {error}") from error
    finally:
        aside.unlink(missing_ok=True)


def _need_seccomp() -> None:
    """Runc links libseccomp, whose headers and pkg-config file are Debian's libseccomp-dev."""
    asked = ["pkg-config", "--exists", "libseccomp"]
    if not shutil.which("pkg-config") or subprocess.run(asked, check=False).returncode:
        try:
            containers.install("pkg-config", "libseccomp-dev")
        except containers.NotToBeHadError as error:
            raise NotToBeHadError(f"runc needs libseccomp-dev: {error}") from error


def _drop_older(folder: Path) -> None:
    """What earlier versions were built to: half a gigabyte each, and nobody asks for it again."""
    for other in KEPT.iterdir():
        if other.is_dir() and other != folder:
            shutil.rmtree(other, ignore_errors=True)
