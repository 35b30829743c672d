"""Warnings for what would end a suspended Pod."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client
from tests.kube.support.admission import (
    asking,
    claim,
    claiming,
    make_claims,
    make_policy,
    patient_policy,
    refused,
    tried,
    warned,
)

pytestmark = pytest.mark.kube


PROBE = {"exec": {"command": ["true"]}}


def test_authors_of_pods_and_of_workloads_are_warned_of_what_would_end_a_suspended_pod(
    admission, cluster, pods
):
    """A warning comes only where enforcement suspends, and nothing is refused for it."""
    patient_policy(cluster, pods)
    make_policy(cluster, pods, "usual")
    make_claims(cluster, pods, claim("stops", {"onExceed": {"measured": "suspend"}}, memory="1Gi"))
    deadly = {"container": {"livenessProbe": PROBE, "startupProbe": PROBE}}
    _, warnings = tried(
        pods, asking({"penstock.io/memory": "1Gi"}, activeDeadlineSeconds=60, **deadly)
    )
    assert "suspended" not in warnings
    patient = asking({"penstock.io/memory": "1Gi"}, activeDeadlineSeconds=60, **deadly)
    patient["metadata"]["labels"] = {"app": "patient"}
    made, warnings = tried(pods, patient)
    assert made.metadata.annotations["penstock.io/on-exceed"] == "suspend"
    assert made.metadata.annotations["penstock.io/grace"] == "20s"
    for word in (
        "has a livenessProbe",
        "has a startupProbe",
        "activeDeadlineSeconds of the Pod (60)",
    ):
        assert word in warnings
    assert "usual allows terminate or stricter" in refused(pods, claiming("stops"))
    stops = claiming("stops", activeDeadlineSeconds=61)
    stops["metadata"]["labels"] = {"app": "patient"}
    _, warnings = tried(pods, stops)
    assert "activeDeadlineSeconds of the Pod (61)" in warnings
    jobs_of_it_are_warned_of(cluster, pods, patient)
    a_deployment_whose_pods_are_refused_is_warned_of(cluster, pods)


def jobs_of_it_are_warned_of(cluster, pods, patient: dict[str, Any]) -> None:
    """The authors of Jobs and CronJobs that make such Pods are warned."""
    where = pods.namespace
    template = {"metadata": {"labels": {"app": "patient"}}, "spec": patient["spec"]}
    template["spec"] |= {"restartPolicy": "Never"}
    jobs = client.BatchV1Api(cluster.api)
    job = {
        "metadata": {"name": "deadly"},
        "spec": {"template": template, "activeDeadlineSeconds": 77},
    }
    for body, make in (
        (job, jobs.create_namespaced_job_with_http_info),
        (
            {
                "metadata": {"name": "deadly"},
                "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": job["spec"]}},
            },
            jobs.create_namespaced_cron_job_with_http_info,
        ),
    ):
        _, warnings = warned(make, where, body, dry_run="All")
        assert "activeDeadlineSeconds of Job (77)" in warnings
        assert "has a livenessProbe" in warnings


def a_deployment_whose_pods_are_refused_is_warned_of(cluster, pods) -> None:
    """The author of a template is warned; a change of anything else brings no warning."""
    where = pods.namespace
    wrong = asking(
        {"penstock.io/memory": "9Gi"}, container={"securityContext": {"privileged": True}}
    )
    deployment = {
        "metadata": {"name": "wrong"},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": wrong["spec"]},
        },
    }  # fmt: skip
    apps = client.AppsV1Api(cluster.api)
    _, warnings = warned(apps.create_namespaced_deployment_with_http_info, where, deployment)
    assert "its Pods will be refused: container main is privileged" in warnings
    assert "its Pods will be refused: container main requests penstock.io/memory: 9Gi" in warnings
    _, warnings = warned(
        apps.patch_namespaced_deployment_with_http_info, "wrong", where, {"spec": {"paused": True}}
    )
    assert not warnings
