"""Doctor checks of the machine: processor, libc, container, limits, other preloads."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from pathlib import Path

from penstock.diagnostics.finding import Finding, failure, ok, warning
from penstock.node.launch.program import NotElfError, read_elf

LEAST_KERNEL = (4, 14)  # MADV_WIPEONFORK; on older kernels every call costs a getpid
LEAST_FILES = 256
_CONTAINERS = ("docker", "kubepods", "containerd", "lxc")
_SANITIZERS = ("libasan", "libtsan", "libhwasan")


def look_at_machine() -> list[Finding]:
    """All checks that do not depend on the driver."""
    return [_processor(), _libc(), _container(), *_preloads(), _files()]


def _processor() -> Finding:
    machine, release = platform.machine(), platform.release()
    seen = f"{machine}, Linux {release}"
    if machine != "x86_64":
        return failure("processor", seen, "the shim is built for x86-64 only")
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < LEAST_KERNEL:
        return warning("processor", seen, "use kernel 4.14 or later: before, each call costs more")
    return ok("processor", seen)


def _libc() -> Finding:
    name, version = platform.libc_ver()
    if name == "glibc":
        return ok("libc", f"glibc {version}")
    try:
        interpreter = read_elf(Path("/proc/self/exe")).interpreter or "none"
    except NotElfError:
        interpreter = "unknown"
    return failure(
        "libc",
        f"{name or 'not glibc'} {version} (loader {interpreter})".strip(),
        "the shim and the CUDA driver need glibc: use an image that has it",
    )


def _container() -> Finding:
    marks = [mark for mark in ("/.dockerenv", "/run/.containerenv") if Path(mark).exists()]
    kind = os.environ.get("container", "")  # noqa: SIM112 - as systemd and podman spell it
    cgroup = ""
    with contextlib.suppress(OSError):
        cgroup = Path("/proc/1/cgroup").read_text(encoding="utf-8", errors="replace")
    if marks or kind or any(word in cgroup for word in _CONTAINERS):
        return ok("container", f"yes ({', '.join(marks) or kind or 'by its cgroup'})")
    return ok("container", "none seen")


def _preloads() -> list[Finding]:
    own = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    others = [p for p in own if "libpenstock" not in Path(p).name]
    found = []
    if any(Path(p).name.startswith(_SANITIZERS) for p in others):
        found.append(
            warning(
                "other preloads",
                f"LD_PRELOAD holds a sanitizer: {' '.join(others)}",
                "set ASAN_OPTIONS=verify_asan_link_order=0, because the shim is loaded first",
            )
        )
    elif others:
        found.append(
            warning(
                "other preloads",
                f"LD_PRELOAD: {' '.join(others)}",
                "unset any that also hooks CUDA; penstock run loads them after the shim",
            )
        )
    try:
        system = Path("/etc/ld.so.preload").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        system = []
    if system:
        found.append(
            warning(
                "other preloads",
                f"/etc/ld.so.preload: {' '.join(system)}",
                "check that it does not hook CUDA: it is loaded into every program before the shim",
            )
        )
    if os.environ.get("LD_AUDIT"):
        found.append(
            warning(
                "other preloads",
                f"LD_AUDIT={os.environ['LD_AUDIT']}",
                "unset it if CUDA is not limited: an auditor may redirect what programs load",
            )
        )
    return found or [ok("other preloads", "none")]


def _files() -> Finding:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    memory = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked >> 10} KiB"
    many = "unlimited" if files == resource.RLIM_INFINITY else str(files)
    seen = f"{many} open files, {memory} of locked memory"
    if files != resource.RLIM_INFINITY and files < LEAST_FILES:
        return warning("limits", seen, "raise it with ulimit -n: CUDA programs open many files")
    return ok("limits", seen)
