"""Shares under the installed chart: from admission to their end."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections import Counter

import pytest
import yaml
from kubernetes import client
from tests.kube.cluster import images
from tests.kube.support.chart import (
    BY_CLAIMS,
    BY_PLUGIN,
    NAMESPACE,
    RELEASE,
    HelmError,
)
from tests.kube.support.installed import (
    launching,
    shell_of,
    typed,
)
from tests.kube.support.waiting import until

from penstock.kube.objects.names import PLACED
from penstock.kube.objects.placement import read_placement
from penstock.kube.objects.resource_request import roles
from penstock.scheduling.placement.pod_request import totals

pytestmark = pytest.mark.kube


USE = """
import ctypes, time
cu = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert cu.cuInit(0) == 0
assert cu.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cu.cuCtxSetCurrent(context) == 0
free, total = ctypes.c_size_t(), ctypes.c_size_t()
for second in range(100000):
    assert cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(second, total.value >> 30, flush=True)
    time.sleep(0.2)
"""


def grow(pods, name: str, gib: int, **more: str) -> str:
    """Requests `gib` of memory for a running Pod; returns why it was refused, or an empty text."""
    wish = {"penstock.io/resize": json.dumps({"main": {"memory": f"{gib}Gi"}})}
    body = {"metadata": {"annotations": wish}}
    try:
        pods.core.patch_namespaced_pod(name, pods.namespace, body, **more)
    except client.ApiException as error:
        return json.loads(error.body)["message"]
    return ""


def start_both_ways(cluster, pods, limits: dict[str, str]) -> None:
    """The Pods `claim` and `extended`, of 8 GiB and 30 % each."""
    amounts = {"memory": "8Gi", "coresPermille": "300"}
    request = {"deviceClassName": "vgpu.penstock.io", "capacity": {"requests": amounts}}
    client.ResourceV1Api(cluster.api).create_namespaced_resource_claim_template(
        pods.namespace,
        {
            "metadata": {"name": "share"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}},
        },
    )
    pods.start_restricted("claim", "python3", "-uc", USE, template="share")
    pods.start_restricted("extended", "python3", "-uc", USE, limits=limits)


def grows_and_shrinks_within_its_cap(cluster, pods) -> None:
    """The Pod `extended`, as it runs.

    The webhook counts what it asks for against the cap, the extender beside the leading scheduler
    writes it, and the node follows and gives back.
    """
    caps = client.CustomObjectsApi(cluster.api)
    cap = {
        "apiVersion": "penstock.io/v1alpha1", "kind": "QuotaCap", "metadata": {"name": "default"},
        "spec": {"hard": {"memory": "20Gi"}},
    }  # fmt: skip
    where = ("penstock.io", "v1alpha1", pods.namespace, "quotacaps")
    caps.create_namespaced_custom_object(*where, cap)
    exceeded = "5Gi requested, 16Gi of 20Gi taken"
    until("the cap holds", lambda: exceeded in grow(pods, "extended", 13, dry_run="All"))
    for gib in (12, 6, 8):
        assert grow(pods, "extended", gib) == ""
        until(f"it sees {gib} GiB", lambda g=gib: pods.log("extended").endswith(f" {g}\n"))
        until(
            "nothing more is held",
            lambda: "penstock.io/held" not in pods.read("extended").metadata.annotations,
        )
    assert pods.read("extended").status.container_statuses[0].restart_count == 0

    def status() -> tuple[int, dict[str, object]]:
        told = caps.get_namespaced_custom_object(*where, "default")["status"]
        return told["used"]["memoryBytes"] >> 30, told["pending"]

    until("the cap counts what there is again", lambda: status() == (16, {}))


def runs_on_through_an_upgrade(chart, pods, nodes: dict[str, str], before) -> None:
    """`before`: the Pods as they were."""
    agents = {pod.metadata.uid for pod in chart.pods("agent")}
    chart.upgrade("--set", "agent.longestGrace=30s")
    now = chart.pods("agent")
    assert agents.isdisjoint(pod.metadata.uid for pod in now)
    for pod in now:
        assert "--longest-grace=30s" in pod.spec.containers[0].args
    for name, node in nodes.items():
        said = pods.log(name)
        until(f"{name} goes on", lambda n=name, s=said: len(pods.log(n)) > len(s))
        (was,) = before[name].status.container_statuses
        (one,) = pods.read(name).status.container_statuses
        assert (one.restart_count, one.container_id) == (0, was.container_id)
        (tenant,) = json.loads(chart.on_agent(node, "penstock", "ps", "-o", "json"))
        assert tenant["tenant"].startswith(f"{name}.")


def test_restricted_pods_get_shares_in_both_modes_and_keep_running_through_an_upgrade(
    chart, cluster, pods
):
    """PodSecurity's level "restricted".

    No root, no capability, no hostPath, no writable file system.
    """
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.core.patch_namespace(pods.namespace, {"metadata": {"labels": level}})
    extended = {"vgpu": "1", "memory": "8Gi", "cores-permille": "300"}
    limits = {f"penstock.io/{name}": amount for name, amount in extended.items()}
    start_both_ways(cluster, pods, limits)
    nodes = {"claim": BY_CLAIMS, "extended": BY_PLUGIN}
    before = {name: pods.until_phase(name, "Running", within_s=120) for name in nodes}
    for name, node in nodes.items():
        assert before[name].spec.node_name == node
        assert before[name].metadata.labels["penstock.io/vgpu"] == "true", "what drains select by"
        until(f"{name} sees its share", lambda n=name: pods.log(n).endswith(" 8\n"))
    # the webhook gave it to the scheduler that knows devices
    assert before["extended"].spec.scheduler_name == "penstock-scheduler"
    assert before["claim"].spec.scheduler_name == "default-scheduler"
    bad = {**limits, "penstock.io/cores-permille": "1500"}
    with pytest.raises(client.ApiException, match="1500"):
        pods.start_restricted("bad", "true", limits=bad)

    grows_and_shrinks_within_its_cap(cluster, pods)
    runs_on_through_an_upgrade(chart, pods, nodes, before)
    uninstall_in_vain(chart, f"{pods.namespace}/claim, {pods.namespace}/extended")


def uninstall_in_vain(chart, users: str) -> None:
    """An uninstallation while `users` have shares is refused.

    The command that the refusal names restores the release.
    """
    with pytest.raises(HelmError):
        chart.uninstall()
    log = chart.kubectl("--namespace", NAMESPACE, "logs", f"job/{RELEASE}-uninstall-check")
    assert users in log
    assert "delete these Pods and uninstall again" in log
    with pytest.raises(HelmError, match="no deployed releases"):
        chart.upgrade()
    (undo,) = re.findall(rf"helm (rollback {RELEASE} \d+) -n {NAMESPACE}", log)
    chart.order(*undo.split())
    chart.upgrade("--dry-run=server")


SHARES = 60  # of 33 permille: as many as the two devices of the node have room for


def test_no_device_is_overcommitted_when_the_leading_scheduler_is_killed_while_it_binds(
    chart, cluster, pods
):
    """Shares are counted from the Pods' objects. The Pods never start, for lack of a volume."""
    limits = {"penstock.io/memory": "4Gi", "penstock.io/cores-permille": "33"}
    container = {"name": "main", "image": images.DEBIAN, "resources": {"limits": limits}}
    volumes = [{"name": "missing", "configMap": {"name": "missing"}}]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    killed = chart.leader("scheduler")
    (leads,) = (
        pod for pod in chart.pods("scheduler") if killed.startswith(f"{pod.metadata.name}_")
    )

    def make(number: int) -> None:
        body = {"metadata": {"name": f"share-{number}"}, "spec": spec}
        pods.core.create_namespaced_pod(pods.namespace, body, _request_timeout=30)

    def bound() -> int:
        held: Counter[str] = Counter()
        found = cluster.api.sanitize_for_serialization(
            pods.core.list_namespaced_pod(pods.namespace).items
        )
        for one in found:
            text = (one["metadata"].get("annotations") or {}).get(PLACED)
            assert bool(text) == bool(one["spec"].get("nodeName"))
            if text:
                for uuid, share in totals(read_placement(text), roles(one)).items():
                    held[uuid] += share.cores_permille
        assert all(permille <= 1000 for permille in held.values()), held
        return sum(held.values()) // 33

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        making = pool.map(make, range(SHARES + 4))
        until("some are bound", lambda: bound() > 3)
        chart.kill(leads)
        list(making)
    assert bound() < SHARES, "it was killed too late to show anything"
    # The other Pod's, or the process that the kubelet has started in this one meanwhile.
    until("another one leads", lambda: chart.leader("scheduler") != killed)
    until("all that fit are bound", lambda: bound() == SHARES, within_s=60)
    until("both are ready again", lambda: chart.are_ready("scheduler"), within_s=60)


LIMITS = {"penstock.io/memory": "1Gi", "penstock.io/cores-permille": "50"}


def test_a_pods_author_is_warned_of_mistakes_and_a_pod_that_could_lift_its_quota_is_refused(
    chart, cluster, pods, tmp_path
):
    body = launching("odd")
    limits = {"penstock.io/vgpu": "3", **LIMITS}
    body |= {"apiVersion": "v1", "kind": "Pod"}
    body["metadata"]["annotations"] = {"penstock.io/modle": "NVIDIA H200"}
    body["spec"]["hostPID"] = True
    body["spec"]["containers"][0]["resources"]["limits"] = limits
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(body))
    create = f"kubectl create --dry-run=server -n {pods.namespace} -f {file}"
    told = typed([create], shell_of(cluster))
    for words in (
        "annotation penstock.io/modle has no effect",
        "requests shares of 3 devices, and no node here has more than 2",
        "hostPID: the Pod's processes see those of all tenants",
    ):
        assert f"Warning: {words}" in told.replace("container main ", ""), told
    claim = {"deviceClassName": "vgpu.penstock.io", "count": 3}
    request = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"} | {
        "metadata": {"name": "odd"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": claim}]}},
    }
    file.write_text(yaml.safe_dump(request))
    assert "request gpu requests shares of 3 devices" in typed([create], shell_of(cluster))
    powers = {"capabilities": {"add": ["SYS_ADMIN"]}}
    body["spec"]["containers"][0]["securityContext"] = powers
    with pytest.raises(client.ApiException, match="a program can remove its quota"):
        pods.core.create_namespaced_pod(pods.namespace, body, dry_run="All")


AWAY = {"penstock.io/served": "later"}  # a label that no node has


def test_a_share_is_free_when_its_pod_ended_while_the_agent_was_away(chart, cluster, pods):
    """No agent sees a process of the Pod end.

    The agent ends first, then the Pod, then an agent starts.
    """
    apps = client.AppsV1Api(cluster.api)
    body = launching("leaves")
    limits = {"penstock.io/memory": "40Gi", "penstock.io/cores-permille": "400"}
    body["spec"]["containers"][0]["resources"]["limits"] = limits
    body["spec"]["terminationGracePeriodSeconds"] = 5
    pods.core.create_namespaced_pod(pods.namespace, body)
    pods.until_phase("leaves", "Running", within_s=120)
    until("it uses its share", lambda: "launched" in pods.log("leaves"))

    def serve(where: dict[str, str | None]) -> None:
        selector = {"template": {"spec": {"nodeSelector": where}}}
        apps.patch_namespaced_daemon_set(f"{RELEASE}-agent-plugin", NAMESPACE, {"spec": selector})

    serve(AWAY)
    until("no agent is there", lambda: not chart.pods("agent", BY_PLUGIN))
    until(
        "nor a process of one",
        lambda: "penstock agent" not in cluster.on(BY_PLUGIN, "ps", "-eo", "args"),
    )
    pods.core.delete_namespaced_pod("leaves", pods.namespace)
    until("it is gone", lambda: not pods.core.list_namespaced_pod(pods.namespace).items)
    serve(dict.fromkeys(AWAY))
    until("an agent is there again", lambda: chart.pods("agent", BY_PLUGIN))

    def tenants() -> list[str] | None:
        try:
            return json.loads(chart.on_agent(BY_PLUGIN, "penstock", "ps", "-o", "json"))
        except HelmError:  # it does not run yet
            return None

    until("its share is free", lambda: tenants() == [], within_s=60)
