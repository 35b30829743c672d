"""The chart as helm renders it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.chart import (
    NAMESPACE,
    RELEASE,
    HelmError,
    lint,
    render,
)

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def built(cluster):
    """The folder of helm and kubectl, which the cluster has built."""
    return cluster.layout.programs


def test_helm_lint_passes_and_monitoring_is_added_by_values(built):
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


def test_webhooks_fail_closed_only_for_shares_and_are_served_by_two_replicas(built):
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


def test_rights_go_with_the_features_that_need_them_when_values_switch_those_off(built):
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


def test_network_policies_admit_only_required_callers_and_can_be_switched_off(built):
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


def test_every_component_takes_the_operators_placement_labels_and_arguments(built, tmp_path):
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


def test_agents_run_on_nodes_with_a_gpu_and_are_updated_a_tenth_at_a_time(built):
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
def test_an_invalid_value_is_refused_with_its_name(built, value, why):
    with pytest.raises(HelmError, match=why):
        render(built, "--set", value)


def test_the_scheduler_starts_once_its_extender_answers(built):
    """A scheduler that leads without its extender would refuse every Pod, each with an event."""
    (spec,) = (
        one["spec"]["template"]["spec"]
        for one in render(built, "--set", "way=plugin")
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", f"{RELEASE}-scheduler")
    )
    assert [one["name"] for one in spec["containers"]] == ["scheduler"]
    (place,) = spec["initContainers"]
    assert (place["name"], place["restartPolicy"]) == ("place", "Always")
    assert "startupProbe" in place, "without one the next container would begin at once"


def test_a_kubernetes_release_without_shared_claims_is_refused_for_claims_alone(built):
    old = ("--kube-version", "1.35.9-gke.1")
    for way in ("dra", "both"):
        with pytest.raises(HelmError, match=f"way: {way} needs Kubernetes 1.36, and this is v1.35"):
            render(built, *old, "--set", f"way={way}")
    assert render(built, *old, "--set", "way=plugin")
    with pytest.raises(HelmError, match="incompatible"):
        render(built, "--kube-version", "1.33.4", "--set", "way=plugin")


def test_the_committed_generated_files_are_what_the_chart_and_its_sources_render(built, tmp_path):
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
