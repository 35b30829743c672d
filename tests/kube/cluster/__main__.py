"""`python -m tests.kube.cluster build|up|down|status`: a real Kubernetes cluster, for people."""

from __future__ import annotations

import argparse
import sys
import time

from tests.kube.cluster import NotToBeHadError, layout, running


def main() -> int:
    """Exit code 0: done; 1: it went wrong; 2: this machine cannot have a cluster."""
    parser = argparse.ArgumentParser(prog="python -m tests.kube.cluster", description=__doc__)
    parser.add_argument("order", choices=["build", "up", "down", "status"])
    order = parser.parse_args().order
    try:
        if order == "build":
            _build()
        elif order == "up":
            _up()
        elif order == "down":
            for state in layout.states():
                running.down(state)
        else:
            return _status()
    except NotToBeHadError as why:
        print(f"no cluster on this machine: {why}", file=sys.stderr)
        return 2
    except running.ClusterError as why:
        print(f"cluster: {why}", file=sys.stderr)
        return 1
    return 0


def _build() -> None:
    began = time.monotonic()
    own = running.build()
    took_s = time.monotonic() - began
    print(f"all that a cluster starts from is there after {took_s:.0f} s: {own.programs}")


def _up() -> None:
    began = time.monotonic()
    cluster = running.up()
    nodes = ", ".join(sorted(cluster.nodes_ready()))
    print(f"# {nodes} ready after {time.monotonic() - began:.0f} s; stop it: make cluster-down")
    print(f"export KUBECONFIG={cluster.layout.kubeconfig} PATH={cluster.layout.programs}:$PATH")


def _status() -> int:
    own = layout.stored(layout.STATE)
    if own is None:
        print("no cluster; start one: make cluster")
        return 1
    found = running.services(own)
    for name, process in sorted(found.items()):
        print(f"{process.pid:>8}  {process.memory_info().rss >> 20:>5} MiB  {name}")
    if not found:
        print("nothing of it runs; remove what is left: make cluster-down")
        return 1
    print(f"export KUBECONFIG={own.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
