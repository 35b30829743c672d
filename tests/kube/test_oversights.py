"""Warnings for authors of Pods, and capabilities that a Pod with a share may not have."""

from __future__ import annotations

import pytest

from penstock.kube.webhook.author_warnings import misspelt, more_devices
from penstock.kube.webhook.capabilities import review_powers
from penstock.kube.webhook.verdict import Verdict


def test_an_unknown_annotation_of_ours_is_named_with_the_nearest_known_one():
    (said,) = misspelt({"penstock.io/modle": "H200", "penstock.io/mode": "elastic", "a/b": "c"})
    assert said.startswith("annotation penstock.io/modle has no effect: did you mean ")
    assert "penstock.io/model" in said
    (said,) = misspelt({"penstock.io/zzzzzzzzzz": ""})
    assert "known annotations are penstock.io/mode, " in said


def test_more_devices_than_any_node_has_are_warned_of():
    (said,) = more_devices("container main", 3, 2)
    assert said.startswith("container main requests shares of 3 devices, and no node here has more")
    assert not [*more_devices("container main", 2, 2), *more_devices("container main", 9, None)]


def reviewed(**spec: object) -> Verdict:
    verdict = Verdict()
    review_powers({"spec": {"containers": [{"name": "main"}], **spec}}, verdict)
    return verdict


@pytest.mark.parametrize("name", ["SYS_ADMIN", "CAP_SYS_ADMIN", "ALL", "sys_module"])
def test_a_capability_that_can_lift_the_quota_is_refused_in_any_container(name):
    container = {"name": "c", "securityContext": {"capabilities": {"add": ["NET_RAW", name]}}}
    for where in ("containers", "initContainers"):
        (refusal,) = reviewed(**{where: [container]}).refusals
        assert "with it a program can remove its quota" in refusal
    allowed = {"name": "c", "securityContext": {"capabilities": {"add": ["NET_RAW", "SYS_NICE"]}}}
    assert not reviewed(containers=[allowed]).refusals


@pytest.mark.parametrize(
    "path",
    ["/", "/run", "/var", "/run/penstock", "/run/penstock/tenants/x", "//run/./penstock/",
     "/var/run", "/var/lib/penstock/shim", "/var/run/cdi", "/run/containerd/containerd.sock",
     "/data/../run"],
)  # fmt: skip
def test_the_nodes_directories_with_quotas_in_them_are_refused(path):
    (refusal,) = reviewed(volumes=[{"name": "v", "hostPath": {"path": path}}]).refusals
    assert refusal.startswith(f"volume v mounts the node's {path}: ")


@pytest.mark.parametrize("path", ["/data", "/run/penstock-tenant", "/var/lib/models", "/dev/shm"])
def test_other_directories_of_the_node_may_be_mounted(path):
    assert not reviewed(volumes=[{"name": "v", "hostPath": {"path": path}}]).refusals


def test_the_nodes_process_ids_are_warned_of():
    verdict = reviewed(hostPID=True)
    assert not verdict.refusals
    assert "see those of all tenants" in verdict.warnings[0]
