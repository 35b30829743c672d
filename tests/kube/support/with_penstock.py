"""`make cluster-penstock`: the cluster of `make cluster` with this tree's Penstock on it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kube.cluster import NotToBeHadError, images, running
from tests.kube.support.chart import BY_CLAIMS, BY_PLUGIN, NAMESPACE, Chart, HelmError

SAYS = """\
# Penstock is ready after {took_s:.0f} s, with two simulated H200 a node:
#   {claims} gives shares by claims, {plugin} by extended resources
# Pods can use the image {image}, which has Python. Try:
#   kubectl apply -f examples/kubernetes/ranker.yaml && kubectl logs -f ranker
#   kubectl apply -f examples/kubernetes/scorer.yaml && kubectl logs -f scorer
#   kubectl -n {namespace} exec ds/penstock-agent -c agent -- penstock top --once
# stop all of it: make cluster-down; what it understands is in docs/how-to/kubernetes.md
export KUBECONFIG={kubeconfig} PATH={programs}:$PATH"""


def main() -> int:
    """Exit code 0: done; 1: it went wrong; 2: this machine cannot have a cluster."""
    began_s = time.monotonic()
    try:
        cluster = running.up()
        print("# the cluster is up; making and loading this tree's image", flush=True)
        there = NAMESPACE in {one.metadata.name for one in cluster.core.list_namespace().items}
        with tempfile.TemporaryDirectory() as folder:
            chart = Chart(cluster, Path(folder) / "values.yaml")
            chart.install()
            if there:
                _start_anew(chart)
    except NotToBeHadError as why:
        print(f"no cluster on this machine: {why}", file=sys.stderr)
        return 2
    except (running.ClusterError, HelmError, subprocess.SubprocessError) as why:
        print(f"cluster: {why}", file=sys.stderr)
        return 1
    own = cluster.layout
    print(
        SAYS.format(
            took_s=time.monotonic() - began_s, claims=BY_CLAIMS, plugin=BY_PLUGIN,
            image=images.DEBIAN, namespace=NAMESPACE, kubeconfig=own.kubeconfig,
            programs=own.programs,
        )
    )  # fmt: skip
    return 0


def _start_anew(chart: Chart) -> None:
    """Restarts what ran before, whose image has the same name and may be of another tree.

    Shares run on.
    """
    of_it = ("--namespace", NAMESPACE)
    kinds = "deployments,daemonsets"
    chart.kubectl(*of_it, "rollout", "restart", kinds)
    for name in chart.kubectl(*of_it, "get", kinds, "--output", "name").split():
        chart.kubectl(*of_it, "rollout", "status", name, "--timeout=120s")


if __name__ == "__main__":
    sys.exit(main())
