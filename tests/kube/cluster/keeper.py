"""The first process of a cluster's namespaces: `keeper STATE FD FD` starts all and keeps it up.

The first FD is the file `STATE/keeper`, which it was born with a lock on; the second a listening
socket on the outer loopback.

Nothing of a cluster outlives this process: the kernel ends everything in its process namespace,
and with the processes go their network and mount namespaces.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.kube.cluster import control_plane, layout, secrets
from tests.kube.cluster.services import Services


def main(state: Path, told: int, listening: int) -> None:
    """Runs until it is ended, or its directory is removed."""
    # /proc is still the outer one: its /proc/self is this process as others know it.
    pid = Path("/proc/self").readlink().name
    os.write(told, pid.encode())
    own = layout.stored(state)
    if own is None:
        raise SystemExit(f"no cluster is laid out in {state}")
    with socket.socket(fileno=os.dup(listening)) as outside:
        secrets.make(own, outside.getsockname()[1])
    _network()
    services = Services(own.logs)
    services.start("etcd", *control_plane.etcd(own))
    services.start("kube-apiserver", *control_plane.api_server(own))
    services.start("kube-controller-manager", *control_plane.controller_manager(own))
    services.start("kube-scheduler", *control_plane.scheduler(own))
    services.start("coredns", *control_plane.dns(own))
    for node in layout.NODES:
        inside = (sys.executable, "-m", "tests.kube.cluster.node", state, node, pid)
        services.start(node, *NAMESPACES, *inside)
    api = (layout.API_ADDRESS, str(layout.API_PORT))
    door = (sys.executable, "-m", "tests.kube.cluster.door", str(listening), *api)
    services.start("door", *door, fds=(listening,))
    services.tend(own.keeper)


NAMESPACES = ("unshare", "--pid", "--mount", "--net", "--uts", "--ipc", "--fork", "--kill-child")


def _network() -> None:
    """The LAN's switch, and the way to each node's Pods. No route leads out of here."""
    for line in (
        "link set lo up",
        "link add lan type bridge",
        f"address add {layout.API_ADDRESS}/24 dev lan",
        "link set lan up",
        *(
            f"route add {layout.pod_network(node)} via {layout.node_address(node)}"
            for node in layout.NODES
        ),
    ):
        subprocess.run(["ip", *line.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
