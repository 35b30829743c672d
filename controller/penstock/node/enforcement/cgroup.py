"""The container of a process, according to its cgroup, which a contained program cannot leave."""

from __future__ import annotations

import re

from penstock.devices.proc_files import read_proc_text

# Runtimes name a container's cgroup by its id: libpod-ID, docker-ID.scope, cri-containerd-ID.scope,
# kubepods/pod…/ID. Other cgroups (sessions, services) may contain unrelated processes.
_CONTAINER = re.compile(r"/(?:[a-z][a-z0-9-]*-)?[0-9a-f]{64}(?:\.scope)?(?=/|$)")


def paths_of(pid: int | str) -> frozenset[str]:
    """The process's cgroups, as in /proc/PID/cgroup; empty if the process has ended."""
    try:
        lines = read_proc_text(pid, "cgroup").splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.split(":", 2)[-1] for line in lines)


def containers_of(path: str) -> list[str]:
    """The cgroups of the containers around `path`, outermost first."""
    return [path[: found.end()] for found in _CONTAINER.finditer(path)]


def innermost_containers(pid: int) -> frozenset[str]:
    """The cgroups of the process's innermost container, unless we are in that container, too."""
    ours = {one for path in paths_of("self") for one in containers_of(path)}
    found = (containers_of(path) for path in paths_of(pid))
    return frozenset(one[-1] for one in found if one and one[-1] not in ours)
