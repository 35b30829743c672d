"""The cluster of the tests behaves like a real one."""

from __future__ import annotations

import json
import sys

import pytest
from tests.kube.cluster import layout, programs
from tests.kube.support.pods import this_python
from tests.kube.support.waiting import until

pytestmark = pytest.mark.kube

FROM_INSIDE = """
import json, os, ssl, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount/"
kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
request = urllib.request.Request(
    f"https://{os.environ['KUBERNETES_SERVICE_HOST']}/apis/{kind['apiVersion']}/selfsubjectreviews",
    json.dumps(kind).encode(),
    {"Authorization": "Bearer " + open(account + "token").read(),
     "Content-Type": "application/json"},
)
trusted = ssl.create_default_context(cafile=account + "ca.crt")
answer = json.load(urllib.request.urlopen(request, context=trusted))
print(json.dumps({
    "pid": os.getpid(),
    "host": os.uname().nodename,
    "cgroup": open("/proc/self/cgroup").read(),
    "user": answer["status"]["userInfo"]["username"],
}))
"""
FETCH = """
import sys, time, urllib.request
for attempt in range(100):  # the server may not listen yet, nor kube-proxy know of the service
    try:
        answer = urllib.request.urlopen(f"http://{sys.argv[1]}/hostname", timeout=5).read()
        break
    except OSError:
        time.sleep(0.3)
print(answer.decode(), end="")
"""
BURN = "while True: pass"
NUMBA = """
import numba
@numba.njit
def triangle(n):
    total = 0
    for i in range(n + 1):
        total += i
    return total
print("triangle", triangle(1000))
"""


def test_both_nodes_are_ready_and_run_the_release_that_go_mod_names(cluster):
    assert cluster.nodes_ready() == set(layout.NODES)
    nodes = cluster.core.list_node().items
    assert {node.status.node_info.kubelet_version for node in nodes} == {
        programs.kubernetes_version()
    }
    assert {node.status.node_info.container_runtime_version.split("+")[0] for node in nodes} == {
        "containerd://2.4.2"
    }


def test_a_pod_prints_who_it_is_and_the_api_returns_its_output(cluster, pods):
    for node in layout.NODES:
        pods.start(f"on-{node}", "python3", "-c", FROM_INSIDE, node=node)
    for node in layout.NODES:
        pod = pods.until_phase(f"on-{node}", "Succeeded")
        said = json.loads(pods.log(f"on-{node}"))
        assert pod.spec.node_name == node
        assert said["pid"] == 1
        assert said["host"] == f"on-{node}"
        # the kernel's own word on where the process is: below this node's Pods, under its own uid
        paths = {line.split(":", 2)[2] for line in said["cgroup"].splitlines()}
        own = [
            path for path in paths if path.startswith(f"{cluster.layout.cgroup(node)}/kubepods/")
        ]
        assert own, paths
        assert all(f"pod{pod.metadata.uid}" in path for path in own)
        # through kube-proxy to the API server, over TLS, as the Pod's service account
        assert said["user"] == f"system:serviceaccount:{pods.namespace}:default"


def test_pods_and_the_api_server_reach_pods_by_address_and_by_service(cluster, pods):
    """The API server reaches a Pod as it reaches webhooks.

    Pods reach each other between nodes and through kube-proxy.
    """
    serve = ("python3", "-m", "http.server", "8080", "--directory", "/etc")
    pods.start("server", *serve, node="node-1", labels={"app": "server"})
    served = pods.until_phase("server", "Running")
    service = {
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    made = cluster.core.create_namespaced_service(pods.namespace, service)
    for url in (f"{served.status.pod_ip}:8080", made.spec.cluster_ip):
        pods.start(f"caller-{url.count(':')}", "python3", "-c", FETCH, url, node="node-2")
    for name in ("caller-0", "caller-1"):
        pods.until_phase(name, "Succeeded")
        assert pods.log(name) == "server\n"
    proxied = cluster.core.connect_get_namespaced_service_proxy_with_path(
        "server", pods.namespace, "hostname", _preload_content=False
    )
    assert proxied.data == b"server\n"


def test_kubelet_measures_the_cpu_that_a_pod_burns(cluster, pods):
    pods.start("burner", "python3", "-c", BURN, node="node-2")
    pods.start("idler", "sleep", "1000", node="node-2")
    pods.until_phase("burner", "Running")
    pods.until_phase("idler", "Running")

    def nanocores() -> dict[str, int] | None:
        summary = json.loads(cluster.ask_kubelet("node-2", "stats/summary"))
        used = {
            pod["podRef"]["name"]: pod["cpu"].get("usageNanoCores", 0)
            for pod in summary["pods"]
            if pod["podRef"]["namespace"] == pods.namespace and "cpu" in pod
        }
        return used if used.get("burner", 0) > 50_000_000 and "idler" in used else None

    used = until("the summary tells a twentieth of a core or more", nanocores)
    assert used["idler"] < used["burner"] / 5


def test_a_pod_on_the_host_s_python_has_what_tests_have(pods):
    pods.start("numba", sys.executable, "-c", NUMBA, mounts=this_python())
    pods.until_phase("numba", "Succeeded")
    assert "triangle 500500" in pods.log("numba")


def test_a_killed_kubelet_and_a_killed_containerd_come_back_and_pods_run_on(cluster, pods):
    pods.start("steady", "sleep", "1000", node="node-1")
    before = pods.until_phase("steady", "Running")
    for service in ("node-1-kubelet", "node-1-containerd"):
        process = cluster.process(service)
        process.kill()
        until(
            f"another {service}", lambda p=process, s=service: cluster.running(s) not in {None, p}
        )
    pods.start("later", "python3", "-c", "print('here')", node="node-1")
    pods.until_phase("later", "Succeeded")
    assert pods.log("later") == "here\n"
    steady = pods.read("steady").status.container_statuses[0]
    assert steady.container_id == before.status.container_statuses[0].container_id
    assert steady.restart_count == 0


def test_a_killed_api_server_and_a_killed_etcd_lose_nothing_that_was_acknowledged(cluster, pods):
    written = []

    def write(count: int) -> None:
        for _ in range(count):
            name = f"note-{len(written)}"
            cluster.core.create_namespaced_config_map(
                pods.namespace, {"metadata": {"name": name}, "data": {"at": str(len(written))}}
            )
            written.append(name)

    for service in ("kube-apiserver", "etcd"):
        write(50)
        process = cluster.process(service)
        process.kill()
        until(
            f"another {service}", lambda p=process, s=service: cluster.running(s) not in {None, p}
        )
        until("it answers", lambda: cluster.core.list_namespaced_config_map(pods.namespace))
    write(1)
    found = cluster.core.list_namespaced_config_map(pods.namespace).items
    data = {
        note.metadata.name: note.data["at"] for note in found if note.data and "at" in note.data
    }
    assert data == {name: str(at) for at, name in enumerate(written)}


def test_a_node_that_loses_power_boots_again_and_runs_its_pods(cluster, pods):
    pods.start("again", "sleep", "1000", node="node-2", restart="Always")
    pods.until_phase("again", "Running")
    off = cluster.process("node-2")
    off.kill()
    until("another boot", lambda: cluster.running("node-2-kubelet"))

    def restarted() -> bool:
        statuses = pods.read("again").status.container_statuses
        return bool(statuses and statuses[0].restart_count and statuses[0].state.running)

    until("the Pod runs on the same disk again", restarted, within_s=120)
