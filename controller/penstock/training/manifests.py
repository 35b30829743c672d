"""Kubernetes objects of a training job: Pods that serve cards, and the Pod of its program."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

from penstock.card.names import CREDENTIALS_VARIABLE, WAIT_VARIABLE
from penstock.training.document import job_name
from penstock.training.run import VARIABLE as RUNS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.training.document import TrainJob
    from penstock.training.kubernetes import Group, Kubernetes, PodSettings

Object = dict[str, Any]

PROJECT_LABEL, RUN_LABEL = "penstock.io/train-project", "penstock.io/train-run"
PART_LABEL = "penstock.io/train-part"  # "program", or the group's name
PROGRAM = "program"
PORT = 7700
_CREDENTIALS, _RUNS = "/etc/penstock/card", "/var/lib/penstock/train"
_SHM = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_TERMINATED = 143  # exit code of who was told to end: a Pod that is deleted
_NOT_STARTED, _NOT_FOUND = 126, 127
_MOST_LOSSES = 1000  # of a card's Pod: the program, not the Job, says when it is too often
_AWAY_S = 30  # a node does not answer, until its Pods are started elsewhere
_FAILURES = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"


def objects(job: TrainJob, credentials: Path) -> list[Object]:
    """The objects of a job that `load_kubernetes_job` has read, the first before those that use it.

    `credentials`: the folder in which `penstock.card.credentials.write` has made both halves.
    """
    return _Objects(job).all(credentials)


def selector(job: TrainJob) -> str:
    """The labels of all objects of a run, as kubectl selects by them."""
    return ",".join(f"{name}={value}" for name, value in _Objects(job).labels.items())


class _Objects:
    def __init__(self, job: TrainJob) -> None:
        assert job.spec.kubernetes is not None  # noqa: S101 - load_kubernetes_job looks for it
        self._job, self._name = job, job_name(job)
        self._kubernetes: Kubernetes = job.spec.kubernetes
        self.labels = {PROJECT_LABEL: job.metadata.project, RUN_LABEL: str(job.metadata.name)}

    def all(self, credentials: Path) -> list[Object]:
        # A Secret each: who serves cards cannot pretend to be the program.
        secrets = [self._secret(part, credentials / half)
                   for part, half in ((PROGRAM, "program"), ("cards", "worker"))]  # fmt: skip
        groups = [self._group(one) for one in self._kubernetes.groups]
        return [*secrets, self._service(), *groups, self._program()]

    def _object(self, api_version: str, kind: str, name: str, **rest: object) -> Object:
        metadata: Object = {"name": name, "labels": dict(self.labels)}
        if self._kubernetes.namespace is not None:
            metadata["namespace"] = self._kubernetes.namespace
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}

    def _secret(self, part: str, folder: Path) -> Object:
        data = {one.name: base64.b64encode(one.read_bytes()).decode()
                for one in sorted(folder.iterdir())}  # fmt: skip
        return self._object("v1", "Secret", f"{self._name}-{part}", immutable=True, data=data)

    def _service(self) -> Object:
        """Without an address of its own: it gives the Pods of cards their names."""
        ports = [{"name": "card", "port": PORT}]
        spec = {"clusterIP": "None", "selector": dict(self.labels), "ports": ports}
        return self._object("v1", "Service", self._name, spec=spec)

    def _group(self, group: Group) -> Object:
        """A Job whose Pods each serve a card, until the program's run is over.

        A Pod that is deleted is replaced at once, also if its node does not answer any more: of two
        Pods with one card's name the program uses one, and the other does nothing.
        """
        command = [
            "penstock", "card", "serve", f"--card={group.card}", f"--listen=$(POD_IP):{PORT}",
            f"--credentials={_CREDENTIALS}", "--once", f"--wait={self._kubernetes.wait}",
        ]  # fmt: skip
        environment = [
            *_variables(group.environment),
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ]
        container = self._container(group, "card", command, environment)
        container["ports"] = [{"containerPort": PORT}]
        pod = self._pod(group, group.name, "cards", container)
        if group.claim_template is not None:
            container["resources"]["claims"] = [{"name": "card"}]
            claim = {"name": "card", "resourceClaimTemplateName": group.claim_template}
            pod["spec"]["resourceClaims"] = [claim]
        spec = {
            "completionMode": "Indexed", "completions": group.cards, "parallelism": group.cards,
            "backoffLimitPerIndex": _MOST_LOSSES, "podReplacementPolicy": "TerminatingOrFailed",
            "template": pod,
        }  # fmt: skip
        return self._object("batch/v1", "Job", f"{self._name}-{group.name}", spec=spec)

    def _program(self) -> Object:
        """A Job with the program's Pod, of which there are never two."""
        job, settings = self._job, self._kubernetes.program
        environment = [
            {"name": "PENSTOCK_FAILURES", "valueFrom": {"fieldRef": {"fieldPath": _FAILURES}}},
            *_variables({
                CREDENTIALS_VARIABLE: _CREDENTIALS, WAIT_VARIABLE: self._kubernetes.wait,
                RUNS_VARIABLE: _RUNS, **job.spec.environment,
            }),
        ]  # fmt: skip
        container = self._container(settings, PROGRAM, self._command(), environment)
        pod = self._pod(settings, PROGRAM, PROGRAM, container)
        # Loaders hand batches over in shared memory, of which a container has 64 MiB else.
        for name, path, source in (("runs", _RUNS, {}), ("shm", _SHM, {"medium": "Memory"})):
            container["volumeMounts"].append({"name": name, "mountPath": path})
            pod["spec"]["volumes"].append({"name": name, "emptyDir": source})
        if job.spec.folder is not None:
            container["workingDir"] = job.spec.folder
        pod["spec"]["terminationGracePeriodSeconds"] = math.ceil(job.spec.grace_s) + 5
        told = {"containerName": PROGRAM, "operator": "In", "values": [_TERMINATED]}
        hopeless = {**told, "values": [_NOT_STARTED, _NOT_FOUND]}
        rules = [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "Ignore", "onExitCodes": told},
            {"action": "FailJob", "onExitCodes": hopeless},
        ]
        spec = {
            "completionMode": "Indexed", "completions": 1, "parallelism": 1,
            "backoffLimitPerIndex": job.spec.restarts, "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules}, "template": pod,
        }  # fmt: skip
        return self._object("batch/v1", "Job", self._name, spec=spec)

    def _command(self) -> list[str]:
        """What runs the program on the cards of all groups."""
        job = self._job
        options = {
            "cards": ",".join(self._cards()), "split": job.spec.split,
            "restarts": job.spec.restarts, "failures": "$(PENSTOCK_FAILURES)",
            "grace": job.spec.grace, "webhook": job.spec.webhook, "metrics": job.spec.metrics,
            "project": job.metadata.project, "name": job.metadata.name,
        }  # fmt: skip
        given = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return ["penstock", "train", "run", *given, "--", *map(_verbatim, job.spec.command)]

    def _cards(self) -> list[str]:
        """All cards by the names of their Pods, as $PENSTOCK_CARD lists them."""
        return [
            f"tcp:{self._name}-{group.name}-{number}.{self._name}:{PORT}"
            + ("" if group.speed is None else f"={group.speed:g}")
            for group in self._kubernetes.groups
            for number in range(group.cards)
        ]

    def _container(
        self, settings: PodSettings, name: str, command: list[str], environment: list[Object]
    ) -> Object:
        given = {"limits": settings.limits, "requests": settings.requests}
        mounts: list[Object] = [
            {"name": "credentials", "mountPath": _CREDENTIALS, "readOnly": True},
            *({"name": one.name, "mountPath": one.mount_path, "readOnly": one.read_only}
              for one in settings.volumes),
        ]  # fmt: skip
        return {
            "name": name, "image": settings.image or self._kubernetes.image, "command": command,
            "env": environment, "resources": {one: dict(two) for one, two in given.items() if two},
            "volumeMounts": mounts,
            "securityContext": {
                "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            },
        }  # fmt: skip

    def _pod(self, settings: PodSettings, part: str, secret: str, container: Object) -> Object:
        user, labels = self._kubernetes.user, {**self.labels, PART_LABEL: part}
        secret_volume = {"secretName": f"{self._name}-{secret}", "defaultMode": 0o440}
        spec: Object = {
            "restartPolicy": "Never", "subdomain": self._name, "containers": [container],
            "automountServiceAccountToken": False, "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 10,
            "securityContext": {
                "runAsNonRoot": user != 0, "runAsUser": user, "runAsGroup": user, "fsGroup": user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [*settings.tolerations, *_away()],
            "volumes": [
                {"name": "credentials", "secret": secret_volume},
                *({"name": one.name, **one.source} for one in settings.volumes),
            ],
        }  # fmt: skip
        more = {
            "nodeSelector": settings.node_selector, "runtimeClassName": settings.runtime_class,
            "priorityClassName": self._kubernetes.priority_class,
            "imagePullSecrets": [{"name": one} for one in self._kubernetes.pull_secrets],
        }  # fmt: skip
        spec |= {name: value for name, value in more.items() if value}
        metadata: Object = {"labels": labels}
        if settings.annotations:
            metadata["annotations"] = settings.annotations
        return {"metadata": metadata, "spec": spec}


def _away() -> list[Object]:
    """Tolerations by which a Pod leaves a node that does not answer sooner than after 300 s."""
    return [
        {"key": f"node.kubernetes.io/{one}", "operator": "Exists", "effect": "NoExecute",
         "tolerationSeconds": _AWAY_S}
        for one in ("not-ready", "unreachable")
    ]  # fmt: skip


def _variables(environment: Mapping[str, str]) -> list[Object]:
    return [{"name": one, "value": _verbatim(two)} for one, two in environment.items()]


def _verbatim(text: str) -> str:
    """A text in which Kubernetes replaces nothing: it would $(NAME), and takes $$ for $."""
    return text.replace("$", "$$")
