"""The objects of a training job, as the API server takes them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.installed import shell_of

pytestmark = pytest.mark.kube

ALL_KEYS = """\
apiVersion: penstock.io/v1alpha1
kind: TrainJob
metadata: {project: digits, name: first}
spec:
  command: [python, train.py]
  folder: /program
  restarts: 3
  kubernetes:
    image: registry.example.com/digits:1
    user: 54321
    wait: 2h
    priorityClassName: system-cluster-critical
    imagePullSecrets: [registry]
    groups:
      - name: a
        cards: 2
        speed: 1.5
        limits: {penstock.io/memory: 20Gi, penstock.io/cores-permille: 300, cpu: 500m}
        requests: {cpu: 100m}
        nodeSelector: {gpu: h200}
        tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
        annotations: {penstock.io/model: NVIDIA H200}
        runtimeClassName: nvidia
        environment: {OMP_NUM_THREADS: "1"}
        volumes: [{name: own, mountPath: /own, readOnly: true, source: {configMap: {name: own}}}]
      - {name: b, cards: 1, card: "npu:0", speed: 1, claimTemplate: share}
"""


def applied(cluster, pods, file) -> str:
    """What kubectl says when it applies a job's objects, which stay as they are."""
    command = [sys.executable, "-m", "penstock", "train", "render", file]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    apply = ["kubectl", "apply", "--dry-run=server", "--validate=strict", f"-n{pods.namespace}",
             "-f-"]  # fmt: skip
    done = subprocess.run(
        apply, input=made, env=shell_of(cluster), text=True, timeout=60, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_api_server_takes_all_that_a_job_can_say_and_finds_the_pods_restricted(
    cluster, pods, tmp_path
):
    level = {"pod-security.kubernetes.io/warn": "restricted"}
    cluster.core.patch_namespace(pods.namespace, {"metadata": {"labels": level}})
    file = tmp_path / "job.yaml"
    file.write_text(ALL_KEYS)
    for one in (file, PROJECT / "examples/kubernetes/job.yaml"):
        said = applied(cluster, pods, one)
        assert said.count("created (server dry run)") == 6
        assert "would violate PodSecurity" not in said
    root = ALL_KEYS.replace("user: 54321", "user: 0")
    file.write_text(root)
    assert "would violate PodSecurity" in applied(cluster, pods, file), "nothing looks at it"
