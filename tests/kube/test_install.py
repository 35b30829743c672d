"""The chart, installed by helm on the real cluster from this tree's own image."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from tests.kube.chart import (
    BY_CLAIMS,
    BY_PLUGIN,
    NAMESPACE,
    RELEASE,
    Chart,
    HelmError,
    lint,
    render,
    traces,
)
from tests.kube.cluster import images, layout
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.controlling import PAGES_PORT, Things
from tests.kube.nodes import forget_plugins
from tests.kube.waiting import until

from penstock.kube.objects.names import PLACED
from penstock.kube.objects.placement import read_placement
from penstock.kube.objects.resource_request import roles
from penstock.scheduling.placement.pod_request import totals

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def built(cluster):
    """Helm and kubectl: nobody waits for their compiler here where no cluster can be had."""
    return cluster.layout.programs


@pytest.fixture(scope="module")
def chart(cluster, tmp_path_factory):
    """Installed for the tests here; what is left when it is gone again is a test of its own."""
    before = frozenset(traces(cluster))
    made = Chart(cluster, tmp_path_factory.mktemp("chart") / "values.yaml", before)
    made.install()
    yield made
    if NAMESPACE in {one.metadata.name for one in cluster.core.list_namespace().items}:
        made.uninstall_at_once()
        made.remove_namespace()


def test_helm_finds_nothing_wrong_and_every_value_may_be_changed(built):
    assert "0 chart(s) failed" in lint(built)
    usual = {(one["kind"], one["metadata"]["name"]) for one in render(built)}
    assert ("DaemonSet", "penstock-agent") in usual
    more = render(built, "--set", "monitoring.podMonitor=true,monitoring.rules=true")
    added = {
        one["kind"]: one for one in more if (one["kind"], one["metadata"]["name"]) not in usual
    }
    assert set(added) == {"PodMonitor", "PrometheusRule"}
    own = yaml.safe_load((PROJECT / "deploy/prometheus/rules.yaml").read_text())
    assert added["PrometheusRule"]["spec"] == own
    assert {one["apiVersion"] for one in added.values()} == {"monitoring.coreos.com/v1"}
    monitor = added["PodMonitor"]["spec"]
    agents = [
        one for one in more if one["kind"] == "DaemonSet" and "-agent" in str(one["metadata"])
    ]
    for pod in (one["spec"]["template"] for one in agents):
        assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["labels"][monitor["jobLabel"]] == "penstock"  # alerts ask for it
        ports = {port["name"] for one in pod["spec"]["containers"] for port in one["ports"]}
        assert [(one["port"] in ports, one["honorLabels"]) for one in monitor[
            "podMetricsEndpoints"]] == [(True, True)]  # fmt: skip


def test_webhooks_fail_closed_for_shares_alone_and_what_serves_them_is_two(built):
    whole = {(one["kind"], one["metadata"]["name"]): one for one in render(built)}
    hooks = [
        hook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in whole[kind, "penstock"]["webhooks"]
    ]
    closed = {hook["name"] for hook in hooks if hook["failurePolicy"] == "Fail"}
    assert closed == {f"{name}.penstock.io" for name in ("pods", "placed", "resize", "claims")}
    for hook in hooks:
        (rule,) = hook["namespaceSelector"]["matchExpressions"]
        assert rule["operator"] == "NotIn"
        assert {"kube-system", NAMESPACE} == set(rule["values"])
        if hook["name"] != "claims.penstock.io":  # every claim is looked at: classes are not in it
            assert any("penstock.io/" in one["expression"] for one in hook["matchConditions"])
    for name in ("admit", "control", "scheduler"):
        if ("Deployment", f"penstock-{name}") not in whole:
            continue
        assert whole["Deployment", f"penstock-{name}"]["spec"]["replicas"] == 2
        budget = whole["PodDisruptionBudget", f"penstock-{name}"]["spec"]
        assert budget["minAvailable"] == 1
        labels = whole["Deployment", f"penstock-{name}"]["spec"]["template"]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert ("Deployment", "penstock-admit") in whole


def _rules(objects: list[dict[str, Any]], name: str) -> set[tuple[str, str]]:
    (role,) = [
        one for one in objects if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name
    ]
    return {(resource, verb) for rule in role["rules"]
            for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip


def _pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in objects
        if one["kind"] in {"Deployment", "DaemonSet"} and "template" in one["spec"]
    }


def test_strong_rights_and_fetching_are_switched_off_by_values_together_with_what_uses_them(built):
    proxy, services, usage = ("nodes/proxy", "get"), ("services", "get"), ("pods", "list")
    for use, pages, has in (
        ("metrics", "namespace", {services}), ("kubelets", "off", {proxy}), ("off", "off", set()),
        ("off", "anywhere", set()),
    ):  # fmt: skip
        values = f"control.podUse={use},control.qpsPages={pages}"
        objects = render(built, "--set", values)
        assert _rules(objects, "penstock-control") & {proxy, services} == has
        assert usage in _rules(objects, "penstock-control")
        (control,) = _pods(objects)["penstock-control"]["spec"]["containers"]
        assert {f"--pod-use={use}", f"--qps-pages={pages}"} <= set(control["args"])
        assert ("metrics.k8s.io" in json.dumps(objects)) == (use == "metrics")
    bare = render(built, "--set", "agent.metricsPort=0")
    agent = _pods(bare)["penstock-agent"]["spec"]["containers"][0]
    assert "--metrics=" in agent["args"]
    assert [port["name"] for port in agent["ports"]] == ["healthz"]
    assert agent["livenessProbe"]["httpGet"]["port"] == "healthz"
    with pytest.raises(HelmError, match=r"podMonitor needs agent\.metricsPort"):
        render(built, "--set", "agent.metricsPort=0,monitoring.podMonitor=true")


def test_network_policies_let_in_who_has_to_come_and_are_switched_off_by_a_value(built):
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in render(built, "--set", "way=both", "--set-json", 'networkPolicies.metricsFrom=['
        '{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]', "--set",
        "networkPolicies.apiServers={10.0.0.0/28}")
        if one["kind"] == "NetworkPolicy"
    }  # fmt: skip
    assert set(policies) == {
        f"penstock-{name}" for name in ("agent", "admit", "control", "scheduler")
    }
    pods = _pods(render(built, "--set", "way=both"))
    for name, policy in policies.items():
        selected = policy["podSelector"]["matchLabels"].items()
        assert {one for one, pod in pods.items() if selected <= pod["metadata"]["labels"].items()}
        assert "Ingress" in policy["policyTypes"]
        assert isinstance(policy["ingress"], list), name
    (agent,) = policies["penstock-agent"]["ingress"]
    assert [one["port"] for one in agent["ports"]] == [9470]
    assert [set(one) for one in agent["from"]] == [{"podSelector"}, {"namespaceSelector"}]
    (admit,) = policies["penstock-admit"]["ingress"]
    assert admit["from"] == [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    assert policies["penstock-control"]["ingress"] == []
    assert "Egress" in policies["penstock-control"]["policyTypes"]
    off = render(built, "--set", "networkPolicies.enabled=false")
    assert not [one for one in off if one["kind"] == "NetworkPolicy"]


def test_every_component_takes_the_operators_places_labels_and_arguments(built, tmp_path):
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
            {"matchExpressions": [{"key": "rack", "operator": "Exists"}]},
        ]}}}  # fmt: skip
    own = {
        "nodeSelector": {"pool": "infra"}, "affinity": affinity,
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "podAnnotations": {"team": "ml"}, "podLabels": {
            "cost": "42", "app.kubernetes.io/component": "mine"},
        "extraArgs": ["--help"], "extraEnv": [{"name": "A", "value": "b"}],
    }  # fmt: skip
    values = tmp_path / "own.yaml"
    components = ("agent", "admit", "control", "scheduler")
    values.write_text(yaml.safe_dump({"way": "both", **dict.fromkeys(components, own)}))
    pods = _pods(render(built, "--values", values))
    for name, pod in pods.items():
        if "uninstall" in name:
            continue
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        assert component in components, "what selects its Pods stays the chart's"
        assert pod["metadata"]["labels"]["cost"] == "42"
        assert pod["metadata"]["annotations"]["team"] == "ml"
        spec = pod["spec"]
        assert (spec["nodeSelector"], spec["tolerations"]) == (
            own["nodeSelector"], own["tolerations"])  # fmt: skip
        first = next(one for one in spec["containers"] if one["name"] == component)
        assert "--help" in first.get("args", first.get("command"))
        assert {"name": "A", "value": "b"} in first["env"]
        required = spec["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]  # fmt: skip
        keys = [[rule["key"] for rule in term["matchExpressions"]] for term in required]
        ours = ["penstock.io/way"] if component == "agent" else []
        assert keys == [["disk", *ours], ["rack", *ours]], "each of them is asked for beside ours"


def test_agents_come_to_nodes_with_a_gpu_and_a_tenth_is_replaced_at_a_time(built):
    def nodes(*values: str) -> object:
        pods = _pods(render(built, *(part for one in values for part in ("--set", one))))
        chosen = {name: pod["spec"]["nodeSelector"] for name, pod in pods.items()
                  if "agent" in name or name == "penstock-uninstall"}  # fmt: skip
        assert len({str(one) for one in chosen.values()}) == 1, "cleaned where it ran"
        return chosen["penstock-agent"]

    assert nodes() == {"nvidia.com/gpu.present": "true"}
    assert nodes("agent.onlyGpuNodes=false") == {}
    assert nodes("agent.simulate=h200") == {}
    assert nodes("agent.nodeSelector.pool=gpu") == {"pool": "gpu"}
    (agent,) = [
        one for one in render(built) if one["metadata"]["name"] == "penstock-agent"
        and one["kind"] == "DaemonSet"
    ]  # fmt: skip
    assert agent["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "10%"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("control.podUse=kubelet", "podUse"),
        ("networkPolicies.apiServers={anywhere}", "apiServers"),
        ("agent.simulat=h200", "simulat"),
        ("way=dar", "way"),
        ("paths.state=run/penstock", "paths/state"),
        ("agent.measured=kill", "measured"),
        ("uninstall.waitSeconds=forever", "waitSeconds"),
        ("image.tag=7", "image/tag.*got number, want string"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_its_name(built, value, why):
    with pytest.raises(HelmError, match=why):
        render(built, "--set", value)


def test_a_scheduler_begins_when_its_extender_answers(built):
    """One that leads and finds nobody to ask puts Pods back in vain, each with an event."""
    (spec,) = (
        one["spec"]["template"]["spec"]
        for one in render(built, "--set", "way=plugin")
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", f"{RELEASE}-scheduler")
    )
    assert [one["name"] for one in spec["containers"]] == ["scheduler"]
    (place,) = spec["initContainers"]
    assert (place["name"], place["restartPolicy"]) == ("place", "Always")
    assert "startupProbe" in place, "without one the next container would begin at once"


def test_a_release_that_cannot_share_devices_by_claims_is_refused_for_that_way_alone(built):
    old = ("--kube-version", "1.35.9-gke.1")
    for way in ("dra", "both"):
        with pytest.raises(HelmError, match=f"way: {way} needs Kubernetes 1.36, and this is v1.35"):
            render(built, *old, "--set", f"way={way}")
    assert render(built, *old, "--set", "way=plugin")
    with pytest.raises(HelmError, match="incompatible"):
        render(built, "--kube-version", "1.33.4", "--set", "way=plugin")


def test_what_is_generated_is_as_the_chart_and_its_sources_have_it(built, tmp_path):
    there = tmp_path / "deploy"
    shutil.copytree(PROJECT / "deploy", there)
    for generated in [
        *there.glob("helm/penstock/files/*"),
        *there.glob("kustomize/*/penstock.yaml"),
    ]:
        shutil.rmtree(generated) if generated.is_dir() else generated.unlink()
    command = [PROJECT / "deploy/render.sh", there]
    subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "HELM": str(built / "helm")})
    kept = {path.relative_to(there): path.read_text() for path in there.rglob("*.yaml")}
    own = PROJECT / "deploy"
    assert kept == {path.relative_to(own): path.read_text() for path in own.rglob("*.yaml")}
    for base in ("base", "uninstall"):
        said = subprocess.run(
            [built / "kubectl", "kustomize", there / "kustomize" / base],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert {
            one["metadata"].get("namespace", NAMESPACE) for one in yaml.safe_load_all(said)
        } == {NAMESPACE}


CAPABILITIES = {  # by their numbers in the kernel
    0: "CHOWN", 1: "DAC_OVERRIDE", 2: "DAC_READ_SEARCH", 3: "FOWNER", 5: "KILL",
    19: "SYS_PTRACE", 23: "SYS_NICE",
}  # fmt: skip


def test_an_agent_comes_up_on_each_node_with_its_devices_and_little_of_roots_power(chart):
    for node in layout.NODES:
        devices = json.loads(chart.on_agent(node, "penstock", "devices", "-o", "json"))
        (simulated,) = [one for one in devices["kinds"] if one["kind"] == "simulated"]
        assert [one["model"] for one in simulated["devices"]] == ["NVIDIA H200"] * 2
        status = chart.on_agent(node, "cat", "/proc/self/status")
        (bound,) = re.findall(r"^CapBnd:\s+([0-9a-f]+)$", status, re.MULTILINE)
        assert int(bound, 16) == sum(1 << number for number in CAPABILITIES)
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
        assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
        with pytest.raises(HelmError, match="Read-only file system"):
            chart.on_agent(node, "touch", "/opt/penstock/here")


RIGHTS = {  # verb, group, resource, namespace
    "agent": (
        {
            ("patch", "", "nodes", ""), ("create", "resource.k8s.io", "resourceslices", ""),
            ("get", "resource.k8s.io", "resourceclaims", "default"), ("list", "", "pods", ""),
            ("patch", "", "events", "default"), ("patch", "", "pods/status", "default"),
        },
        {
            ("get", "", "secrets", NAMESPACE), ("create", "", "pods", NAMESPACE),
            ("patch", "", "pods", "default"), ("create", "", "pods/exec", "default"),
            ("delete", "", "nodes", ""), ("patch", "", "nodes/status", ""),
            ("update", "", "pods/status", "default"), ("create", "", "pods/eviction", "default"),
            ("update", "resource.k8s.io", "resourceclaims/status", "default"),
            ("get", "", "nodes/proxy", ""),
        },
    ),
    "control": (
        {
            ("patch", "penstock.io", "quotapolicies/status", "default"),
            ("update", "penstock.io", "quotacaps/status", "default"),
            ("update", "apps", "deployments/scale", "default"),
            ("get", "", "nodes/proxy", ""), ("get", "", "services", "default"),
            ("create", "", "events", "default"),
            ("create", "coordination.k8s.io", "leases", NAMESPACE),
        },
        {
            ("get", "", "secrets", NAMESPACE), ("patch", "", "nodes", ""),
            ("list", "metrics.k8s.io", "pods", "default"),
            ("delete", "", "pods", "default"), ("create", "", "pods", "default"),
            ("list", "", "services", ""), ("update", "apps", "deployments", "default"),
            ("update", "penstock.io", "quotapolicies", "default"),
            ("create", "coordination.k8s.io", "leases", "kube-system"),
        },
    ),
    "admit": (
        {
            ("get", "resource.k8s.io", "resourceclaimtemplates", "default"),
            ("get", "penstock.io", "quotapolicies", "default"), ("watch", "", "nodes", ""),
        },
        {
            ("list", "", "secrets", NAMESPACE), ("get", "", "secrets", "default"),
            ("create", "", "pods", "default"), ("patch", "", "pods", "default"),
            ("update", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", ""),
            ("update", "penstock.io", "quotapolicies", "default"),
        },
    ),
    "scheduler": (
        {
            ("create", "", "pods/binding", "default"), ("list", "", "nodes", ""),
            ("patch", "", "pods/status", "default"), ("patch", "", "events", "default"),
            ("create", "coordination.k8s.io", "leases", NAMESPACE),
            ("create", "", "pods/eviction", "default"),
            ("list", "policy", "poddisruptionbudgets", ""),
        },
        {
            ("get", "", "secrets", NAMESPACE), ("create", "", "pods", "default"),
            ("patch", "", "pods", "default"), ("patch", "", "nodes", ""),
            ("get", "", "nodes/proxy", ""), ("delete", "", "events", "default"),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("account", RIGHTS)
def test_an_account_may_do_what_it_needs_and_no_more(chart, account):
    asked = client.AuthorizationV1Api(chart.speak_as(account))

    def may(verb: str, group: str, resource: str, namespace: str) -> bool:
        name, _, part = resource.partition("/")
        about = {"verb": verb, "group": group, "resource": name, "subresource": part}
        review = {"spec": {"resourceAttributes": {**about, "namespace": namespace}}}
        return asked.create_self_subject_access_review(review).status.allowed

    can, cannot = RIGHTS[account]
    assert {right for right in can | cannot if may(*right)} == can


def test_an_agents_token_writes_only_what_is_of_its_own_node(chart, cluster):
    here, there = BY_PLUGIN, BY_CLAIMS  # of claims there are slices
    (pod,) = chart.pods("agent", here)
    core = client.CoreV1Api(chart.speak_as("agent", pod))
    slices = client.ResourceV1Api(core.api_client)

    def refused(why: str, write, *arguments, **more) -> None:
        with pytest.raises(client.ApiException, match=why) as error:
            write(*arguments, **more)
        assert error.value.status == 422

    note = {"metadata": {"annotations": {"penstock.io/tried": "yes"}}}

    def is_in_force() -> bool:  # the API server learns of a new policy within seconds
        try:
            core.patch_node(there, note, dry_run="All")
        except client.ApiException as error:
            return error.status == 422
        return False

    until("the policy is in force", is_in_force)
    core.patch_node(here, note)
    core.patch_node(here, {"metadata": {"annotations": {"penstock.io/tried": None}}})
    refused(f"an agent on {here} may not write nodes/{there}", core.patch_node, there, note)
    nothing_else = "annotations of its node that begin with"
    for change in (
        {"metadata": {"labels": {"penstock.io/pool": "mine"}}},
        {"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": "1"}}},
        {"spec": {"unschedulable": True}},
    ):
        refused(nothing_else, core.patch_node, here, change)
    (theirs,) = slices.list_resource_slice(field_selector=f"spec.nodeName={there}").items
    refused("may not write resourceslices", slices.delete_resource_slice, theirs.metadata.name)
    made = {
        "metadata": {"name": "false"},
        "spec": {
            "driver": "gpu.example.com", "nodeName": here, "devices": [],
            "pool": {"name": here, "generation": 1, "resourceSliceCount": 1},
        },
    }  # fmt: skip
    refused("may not write resourceslices", slices.create_resource_slice, made)
    made["spec"] |= {"driver": "penstock.io", "pool": {**made["spec"]["pool"], "name": there}}
    refused("may not write resourceslices", slices.create_resource_slice, made)
    made["spec"]["pool"]["name"] = here
    slices.create_resource_slice(made, dry_run="All")
    unbound = client.CoreV1Api(chart.speak_as("agent"))
    refused("an agent on no node", unbound.patch_node, here, note)

    # of Pods: whether their share runs, and that one which shrank has, on its own node
    (other,) = chart.pods("agent", there)

    def say(api, one: client.V1Pod, metadata: dict[str, Any] | None = None, **status: Any) -> None:
        body = {"metadata": metadata or {}, "status": status}
        api.patch_namespaced_pod_status(one.metadata.name, NAMESPACE, body, dry_run="All")

    runs = {"conditions": [{"type": "penstock.io/running", "status": "False", "message": "m"}]}
    say(core, pod, **runs)
    refused(f"an agent on {here} may not write pods/", say, core, other, **runs)
    refused("an agent on no node", say, unbound, pod, **runs)
    for wrong in (
        {"conditions": [{"type": "Ready", "status": "False"}]}, {"phase": "Failed"},
        {**runs, "message": "m"}, {**runs, "metadata": {"labels": {"app": "mine"}}},
        {"metadata": {"annotations": {"penstock.io/placed": "{}"}}},
        {"metadata": {"annotations": {"penstock.io/held": "{}"}}},
        {"metadata": {"annotations": {"other": "{}"}}},
    ):  # fmt: skip
        with pytest.raises(client.ApiException, match=r"nothing else of them|only the scheduler"):
            say(core, pod, **wrong)


def test_an_agents_events_are_of_its_own_node_and_about_what_is_asked_for(chart):
    here, there = BY_PLUGIN, BY_CLAIMS
    (pod,) = chart.pods("agent", here)
    core = client.CoreV1Api(chart.speak_as("agent", pod))
    unbound = client.CoreV1Api(chart.speak_as("agent"))

    def tell(api, host: str, kind: str, name: str, component: str = "penstock.io/node") -> None:
        about = {"kind": kind, "name": name, "namespace": NAMESPACE}
        event = {
            "metadata": {"name": f"{name}.1"}, "involvedObject": about, "reason": "Tried",
            "source": {"component": component, "host": host},
        }  # fmt: skip
        api.create_namespaced_event(NAMESPACE, event, dry_run="All")

    def is_in_force() -> bool:  # the API server learns of a new policy within seconds
        try:
            tell(core, there, "Pod", "any")
        except client.ApiException as error:
            return error.status == 422
        return False

    until("the policy is in force", is_in_force)
    tell(core, here, "Pod", "any")
    tell(core, here, "ResourceClaim", "any")
    an_event = f"an agent on {here} may not write the event"
    about_others = "about its own node"
    for why, of in (
        (an_event, (core, there, "Pod", "any")),
        (an_event, (core, here, "Pod", "any", "kubelet")),
        (about_others, (core, here, "Node", there)),
        (about_others, (core, here, "Deployment", "any")),
        ("an agent on no node", (unbound, here, "Pod", "any")),
    ):
        with pytest.raises(client.ApiException, match=why):
            tell(*of)


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
    """Asks for that much memory; why it is refused, or nothing."""
    wish = {"penstock.io/resize": json.dumps({"main": {"memory": f"{gib}Gi"}})}
    body = {"metadata": {"annotations": wish}}
    try:
        pods.core.patch_namespaced_pod(name, pods.namespace, body, **more)
    except client.ApiException as error:
        return json.loads(error.body)["message"]
    return ""


def test_restricted_pods_get_shares_both_ways_and_run_on_through_an_upgrade(chart, cluster, pods):
    """As PodSecurity has it: no root, no capability, no hostPath, nothing to write to."""
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.core.patch_namespace(pods.namespace, {"metadata": {"labels": level}})
    amounts = {"memory": "8Gi", "coresPermille": "300"}
    request = {"deviceClassName": "vgpu.penstock.io", "capacity": {"requests": amounts}}
    client.ResourceV1Api(cluster.api).create_namespaced_resource_claim_template(
        pods.namespace,
        {
            "metadata": {"name": "share"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}},
        },
    )
    extended = {"vgpu": "1", "memory": "8Gi", "cores-permille": "300"}
    limits = {f"penstock.io/{name}": amount for name, amount in extended.items()}
    pods.start_restricted("claim", "python3", "-uc", USE, template="share")
    pods.start_restricted("extended", "python3", "-uc", USE, limits=limits)
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

    # It grows and shrinks while it runs, by those who may: the webhook counts it against the cap,
    # the extender beside the scheduler that leads writes it, the node follows and gives back.
    caps = client.CustomObjectsApi(cluster.api)
    cap = {
        "apiVersion": "penstock.io/v1alpha1", "kind": "QuotaCap", "metadata": {"name": "default"},
        "spec": {"hard": {"memory": "20Gi"}},
    }  # fmt: skip
    where = ("penstock.io", "v1alpha1", pods.namespace, "quotacaps")
    caps.create_namespaced_custom_object(*where, cap)
    exceeded = "5Gi asked for, 16Gi of 20Gi taken"
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

    uninstall_in_vain(chart, f"{pods.namespace}/claim, {pods.namespace}/extended")


def uninstall_in_vain(chart, users: str) -> None:
    """It is refused, and what the refusal says makes a release of it again."""
    with pytest.raises(HelmError):
        chart.uninstall()
    log = chart.kubectl("--namespace", NAMESPACE, "logs", f"job/{RELEASE}-uninstall-check")
    assert users in log
    assert "delete them first" in log
    with pytest.raises(HelmError, match="no deployed releases"):
        chart.upgrade()
    (undo,) = re.findall(rf"helm (rollback {RELEASE} \d+) -n {NAMESPACE}", log)
    chart.order(*undo.split())
    chart.upgrade("--dry-run=server")


SHARES = 60  # of 33 permille: as many as the two devices of the node have room for


def test_no_device_is_given_twice_though_the_leading_scheduler_is_killed_among_bindings(
    chart, cluster, pods
):
    """By the Pods' objects alone. They never start, for lack of a volume: only shares are given."""
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


INSIDE = Path(__file__).parent / "inside"
GRACE_S = 90


def launching(name: str, *words: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A Pod that launches until it is told to end, and then has something to say."""
    volumes = [{"name": "inside", "hostPath": {"path": str(INSIDE)}}]
    mount = {"name": "inside", "mountPath": str(INSIDE), "readOnly": True}
    container = {
        "name": "main", "image": images.DEBIAN, "volumeMounts": [mount], "resources": {},
        "command": ["python3", "-u", str(INSIDE / "launch.py"), *words],
    }  # fmt: skip
    spec = {
        "containers": [container], "volumes": volumes, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
    }  # fmt: skip
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def test_suspended_pods_are_not_ready_and_deletion_resumes_them_both_ways(chart, cluster, pods):
    """By order and by enforcement; over a kill of what keeps the condition."""
    where = pods.namespace
    amounts = {"memory": "2Gi", "coresPermille": "200"}
    request = {"deviceClassName": "vgpu.penstock.io", "capacity": {"requests": amounts}}
    client.ResourceV1Api(cluster.api).create_namespaced_resource_claim(
        where,
        {
            "metadata": {"name": "claiming"},  # of which its tenant has its name
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
        },
    )
    policy = {
        "apiVersion": "penstock.io/v1alpha1", "kind": "QuotaPolicy",
        "metadata": {"name": "patient"},
        "spec": {
            "selector": {"matchLabels": {"app": "past"}},
            "limits": {"memory": "2Gi", "cores": 20},
            "onExceed": {"measured": "suspend", "grace": "1s"},
        },
    }  # fmt: skip
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(
        "penstock.io", "v1alpha1", where, "quotapolicies", policy
    )
    # Names of their own: tenants of other tests may still be going.
    claim, extended = launching("claiming"), launching("asking")
    claim["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "claiming"}]
    claim["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    limits = {"penstock.io/memory": "2Gi", "penstock.io/cores-permille": "200"}
    extended["spec"]["containers"][0]["resources"]["limits"] = limits
    past = launching("past", "past", labels={"app": "past"})  # its amounts are the policy's
    past["spec"]["containers"][0]["resources"]["limits"] = {"penstock.io/vgpu": "1"}
    for body in (claim, extended, past):
        pods.core.create_namespaced_pod(where, body)
    nodes = {"claiming": BY_CLAIMS, "asking": BY_PLUGIN}

    for name in nodes:
        pods.until_phase(name, "Running", within_s=120)
        until(f"{name} is ready", lambda n=name: share_of(pods, n)[::3] == ("True", "True"))
        order(chart, nodes, name, "suspend", "--reason=for a while")
    for name, node in nodes.items():
        until_suspended(pods, name, "VgpuSuspendedByOrder", "for a while")
        cluster.on(node, "pkill", "-KILL", "-f", "penstock kube node")
        order(chart, nodes, name, "resume")
    for name in nodes:
        until(
            f"{name} is ready again",
            lambda n=name: share_of(pods, n)[::3] == ("True", "True"), within_s=120,
        )  # fmt: skip
        order(chart, nodes, name, "suspend")
    # by enforcement, as its policy says: who goes past the shim is stopped
    for name, reason in (
        *dict.fromkeys(nodes, "VgpuSuspendedByOrder").items(),
        ("past", "VgpuSuspended"),
    ):
        until_suspended(pods, name, reason, f"tenant {name}.")

    following = {name: chart.following(where, name) for name in (*nodes, "past")}
    began_s = time.monotonic()
    pods.core.delete_collection_namespaced_pod(where)
    for name, log in following.items():
        said, _ = log.communicate(timeout=GRACE_S)
        assert said.rstrip().endswith("the last line"), (name, said[-300:])
    until("they are gone", lambda: not pods.core.list_namespaced_pod(where).items)
    assert time.monotonic() - began_s < GRACE_S / 2, "nobody waited for a grace period to end"
    for node in nodes.values():
        until(
            "nothing is left of them",
            lambda n=node: json.loads(chart.on_agent(n, "penstock", "ps", "-o", "json")) == [],
        )


def share_of(pods, name: str) -> tuple[str, str, str, str]:
    """Whether the share of a Pod runs, why not, in words; and whether the Pod is ready.

    Its containers are: it is nothing else that keeps it from being so.
    """
    found = {one.type: one for one in pods.read(name).status.conditions or []}
    own, ready = found.get("penstock.io/running"), found["Ready"].status
    if own is None or found["ContainersReady"].status != "True":
        return "", "", "", ready
    return own.status, own.reason, own.message or "", ready


def until_suspended(pods, name: str, reason: str, words: str) -> None:
    def look() -> bool:
        status, why, message, ready = share_of(pods, name)
        return (status, why, ready) == ("False", reason, "False") and words in message

    until(f"{name} is suspended, and not ready", look, within_s=120)


def order(chart, nodes: dict[str, str], name: str, *words: str) -> None:
    """What an administrator does with a Pod's tenant on its node."""
    rows = json.loads(chart.on_agent(nodes[name], "penstock", "ps", "-o", "json"))
    (tenant,) = (row["tenant"] for row in rows if row["tenant"].startswith(f"{name}."))
    chart.on_agent(nodes[name], "penstock", words[0], tenant, *words[1:])


PAGE = PROJECT / "docs/how-to/kubernetes.md"


def commands_of(heading: str) -> list[str]:
    """What the page has people type below that heading, line by line."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    block = section.partition("```console\n")[2].partition("```")[0]
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def test_the_examples_and_the_pages_commands_for_suspension_work_as_printed(chart, cluster, pods):
    shell = shell_of(cluster)
    for name in ("ranker", "scorer"):
        file = PROJECT / f"examples/kubernetes/{name}.yaml"
        chart.kubectl("apply", "--namespace", pods.namespace, "--filename", file)
    for name in ("ranker", "scorer"):
        pods.until_phase(name, "Running", within_s=120)
        until(f"{name} says what it gets", lambda n=name: "% of" in pods.log(n))
        assert pods.log(name).startswith("the device has 8.0 GiB for me\n")
        until(  # less is a busy machine's doing
            f"{name} gets its share",
            lambda n=name: 20 < float(pods.log(n).split(": ")[-1].split(" ")[0]) < 33,
        )
        *before, resume = [
            line.replace("team-a", pods.namespace).replace("ranker", name)
            for line in commands_of("Suspend and resume")
        ]
        assert " suspend " in before[-1]
        typed(before, shell)
        until_suspended(pods, name, "VgpuSuspendedByOrder", "for a while")
        typed([*before[:-1], resume], shell)
        until(f"{name} goes on", lambda n=name: share_of(pods, n)[::3] == ("True", "True"))


def shell_of(cluster) -> dict[str, str]:
    """The environment of somebody who has kubectl and this cluster."""
    return {
        "PATH": f"{cluster.layout.programs}:/usr/bin:/bin",
        "KUBECONFIG": str(cluster.layout.kubeconfig),
        "HOME": str(cluster.layout.state),  # what kubectl keeps goes with the cluster
    }


def typed(lines: list[str], environment: dict[str, str]) -> str:
    """Into one shell; what is said beside the answer, such as warnings."""
    done = subprocess.run(
        ["sh", "-euc", "\n".join(lines)],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_author_of_a_pod_is_warned_and_what_lifts_a_quota_is_refused(
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
        "annotation penstock.io/modle means nothing",
        "asks for shares of 3 devices, and no node here has more than 2",
        "hostPID: its processes see those of all tenants",
    ):
        assert f"Warning: {words}" in told.replace("container main ", ""), told
    claim = {"deviceClassName": "vgpu.penstock.io", "count": 3}
    request = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"} | {
        "metadata": {"name": "odd"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": claim}]}},
    }
    file.write_text(yaml.safe_dump(request))
    assert "request gpu asks for shares of 3 devices" in typed([create], shell_of(cluster))
    powers = {"capabilities": {"add": ["SYS_ADMIN"]}}
    body["spec"]["containers"][0]["securityContext"] = powers
    with pytest.raises(client.ApiException, match="a program can take the quota off"):
        pods.core.create_namespaced_pod(pods.namespace, body, dry_run="All")


LIMITS = {"penstock.io/memory": "1Gi", "penstock.io/cores-permille": "50"}
AWAY = {"penstock.io/served": "later"}  # a label that no node has


def test_a_share_is_free_when_its_pod_ended_while_the_agent_was_away(chart, cluster, pods):
    """No process of it is seen to end: the agent's Pod goes, then the Pod, then an agent comes."""
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


@dataclasses.dataclass(frozen=True)
class Load:
    """A Deployment that is scaled by one metric; what its one replica uses, in percent."""

    metric: str
    least: float
    most: float
    memory: str = "80Mi"  # of the node
    limits: dict[str, str] | None = None  # its share by extended resources


SHARE = {"penstock.io/vgpu": "1", "penstock.io/memory": "8Gi", "penstock.io/cores-permille": "100"}
LOADS = {
    "memory": Load("memory", 110, 200),
    "cores": Load("cores", 80, 130, limits=SHARE),
    "vgpu": Load("vgpuMemory", 85, 101, limits=SHARE),
}


def test_deployments_follow_average_memory_and_the_use_of_their_vgpus(chart, cluster, pods, pages):
    """Each loads one thing and hardly the others: another one's figure would scale nothing."""
    things = Things(cluster, pods.namespace)
    url = f"http://{API_ADDRESS}:{PAGES_PORT}/load"
    volumes = [{"name": "inside", "hostPath": {"path": str(INSIDE)}}]

    def pod_of(load: Load, container: dict[str, Any]) -> dict[str, Any]:
        container["volumeMounts"] = [{"name": "inside", "mountPath": str(INSIDE), "readOnly": True}]
        container["env"] = [{"name": "PENSTOCK_SIM_KERNELS", "value": "spin=param0"}]
        if load.limits:
            container["resources"]["limits"] = load.limits
        return {"volumes": volumes}

    (pages / "load").write_text("burn")
    for name, load in LOADS.items():
        command = ("python3", str(INSIDE / "load.py"), url, name)
        things.deployment(
            name, *command, cpu="10m", memory=load.memory, pod=functools.partial(pod_of, load)
        )
        things.policy(
            name,
            selector={"matchLabels": {"app": name}},
            scale={
                "min": 1, "max": 2, "stabilization": "6s",
                "metrics": {load.metric: {"up": 80, "down": 40}},
            },
        )  # fmt: skip
    try:
        for name, load in LOADS.items():
            until(f"{name} grows", lambda n=name: things.replicas(n) == 2, within_s=90)
            until(
                f"{name} is measured right",
                lambda n=name, x=load: (
                    x.least < things.target(n).get("metrics", {}).get(x.metric, 0) < x.most
                ),
            )
        (pages / "load").write_text("rest")
        for name in LOADS:
            until(f"{name} shrinks", lambda n=name: things.replicas(n) == 1, within_s=90)
    finally:
        things.remove()


def test_uninstalling_waits_until_kubelets_forget_the_plugin_and_leaves_nothing(chart, cluster):
    """As by default. A kubelet takes five minutes, or, as here, one that has lost its record."""
    node = layout.NODES[0]
    chart.on_agent(node, "penstock", "grant", "left", "--memory", "8Gi", "--cores", "30")
    shown = set(traces(cluster))
    for place in ("/run/penstock", "/var/lib/penstock", "/var/run/cdi"):
        assert f"{node}:{place}" in shown
    assert f"{BY_PLUGIN}: penstock.io/vgpu" in shown
    assert "validatingwebhookconfigurations/penstock" in shown
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        uninstalling = pool.submit(chart.uninstall)
        until(
            "the last hook is at work",
            lambda: is_said(chart, "removed capacities of") or uninstalling.done(),
        )
        # It is there again with each of the kubelet's reports, and taken off again.
        told = functools.partial(cluster.core.read_node, BY_PLUGIN)
        until("the kubelet tells it", lambda: "penstock.io/vgpu" in told().status.capacity)
        assert not uninstalling.done()
        for one in layout.NODES:  # on the other there may be one that tests before these left
            forget_plugins(cluster, one)
        uninstalling.result()
    chart.remove_namespace()
    assert set(traces(cluster)) <= chart.before


def is_said(chart, words: str) -> bool:
    """By the hook that cleans the cluster."""
    try:
        return words in chart.kubectl("--namespace", NAMESPACE, "logs", f"job/{RELEASE}-uninstall")
    except HelmError:  # it is not there yet
        return False
