"""A second kube-scheduler with its extender, as processes beside a cluster's control plane."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import yaml
from kubernetes import client
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.waiting import until

from penstock.kube.objects.names import DEVICES, PLACED, RESOURCE_COUNT, SCHEDULER, WAY
from penstock.kube.objects.node_devices import NodeDevice, write_devices
from penstock.kube.objects.placement import read_placement
from penstock.kube.objects.resource_request import roles
from penstock.scheduling.placement.pod_request import totals

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kube.cluster import running

    from penstock.kube.objects.api_client import Object

GIB = 1 << 30
CONFIGURATION = PROJECT / "deploy" / "kube" / "scheduler.yaml"
CHART = PROJECT / "deploy" / "helm" / "penstock" / "templates" / "scheduler.yaml"
RIGHTS = "test-preemption"  # a role and its binding


def devices(node: str, count: int = 2, memory: int = 80 * GIB, **more: Any) -> str:
    """The annotation of a node with so many devices."""
    return write_devices(
        NodeDevice(f"GPU-{node}-{at}", at, more.get("model", "NVIDIA H200"), memory, **{
            key: value for key, value in more.items() if key != "model"
        })
        for at in range(count)
    )  # fmt: skip


def node(name: str, annotation: str | None = None, way: str = "extender", **spec: Any) -> Any:
    """A Node object without a kubelet, for Pods that tolerate that."""
    metadata: dict[str, Any] = {"name": name, "labels": {"fake": "true"}}
    if annotation is not None:
        metadata["annotations"] = {DEVICES: annotation}
        metadata["labels"][WAY] = way
    room = {"cpu": "1000", "memory": "4Ti", "pods": "1000", RESOURCE_COUNT: "1000"}
    return {
        "metadata": metadata,
        "spec": spec,
        "status": {"capacity": room, "allocatable": room},
    }


def pod(name: str, *, scheduler: str = SCHEDULER, priority: str = "", **asked: int | str) -> Any:
    """One container that asks for `vgpu`, `memory`, `cores` or `tflops`; of a priority class."""
    names = {"cores": "cores-permille"}
    limits = {f"penstock.io/{names.get(key, key)}": str(value) for key, value in asked.items()}
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": scheduler,
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"fake": "true"},
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
        },
    }


@dataclass
class Placing:
    """Both processes, in the control plane's network; they end with the test process."""

    cluster: running.Cluster
    folder: Path
    port: int = 9471
    gates: tuple[str, ...] = ("--feature-gates=SchedulerPopFromBackoffQ=false",)  # as the chart
    extended: bool = True  # else the scheduler alone, which knows claims only
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    # The kernel ends a child with the thread that started it, whoever asked that thread to.
    _starter: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def start(self, *options: str) -> None:
        """Starts those of the processes that do not run."""
        self._allow_evictions()
        if self.extended and "extender" not in self._processes:
            self.start_extender(*options)
        if "kube-scheduler" not in self._processes:
            self._start(
                "kube-scheduler",
                self.cluster.layout.programs / "kube-scheduler",
                f"--config={self._configuration()}",
                "--secure-port=0",
                *self.gates,
            )

    def start_extender(self, *options: str) -> None:
        """Starts `penstock kube place`; returns when it answers."""
        kubeconfig = f"--kubeconfig={self._kubeconfig}"
        command = ("-m", "penstock", "kube", "place", f"--listen=127.0.0.1:{self.port}", kubeconfig)
        self._start("extender", sys.executable, *command, *options)
        until("the extender is ready", lambda: self.ask("readyz"))

    def kill(self, name: str = "extender") -> None:
        """Kills the process with SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def running(self, name: str = "extender") -> bool:
        """Whether the processes still run."""
        return self._processes[name].poll() is None

    def process(self, name: str = "extender") -> psutil.Process:
        """The log file of "extender" or "kube-scheduler"."""
        return psutil.Process(self._processes[name].pid)

    def log(self, name: str = "extender") -> str:
        """What it wrote."""
        return (self.folder / f"{name}.log").read_text()

    def ask(self, path: str, body: object = None) -> bytes | None:
        """The extender's answer; None: it is not running or not ready."""
        asked = [
            *self._inside, "curl", "--silent", "--fail", "--max-time", "40",
            *(("--data-binary", "@-") if body is not None else ()),
            f"http://127.0.0.1:{self.port}/{path}",
        ]  # fmt: skip
        done = subprocess.run(
            asked, input=json.dumps(body).encode(), capture_output=True, check=False
        )
        return done.stdout if done.returncode == 0 else None

    def stop(self) -> None:
        """Ends both processes."""
        for name in list(self._processes):
            self.kill(name)
        rights = client.RbacAuthorizationV1Api(self.cluster.api)
        for delete in (rights.delete_cluster_role_binding, rights.delete_cluster_role):
            with contextlib.suppress(client.ApiException):  # it never started
                delete(RIGHTS)

    @property
    def _kubeconfig(self) -> Path:
        return self.cluster.layout.secrets / "kube-scheduler.kubeconfig"

    @property
    def _inside(self) -> list[str]:
        keeper = self.cluster.process("keeper").pid
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/proc/{keeper}/ns/net"]

    def _start(self, name: str, *command: str | Path) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            line = [*self._inside, *map(str, command)]
            self._processes[name] = self._starter.submit(
                subprocess.Popen, line, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            ).result()

    def _allow_evictions(self) -> None:
        """Gives the scheduler the extra rights that the chart's has."""
        rules = [
            yaml.safe_load(rule)
            for rule in re.findall(r"^  - ({.*})$", CHART.read_text(), re.MULTILINE)
            if "eviction" in rule
        ]
        assert len(rules) == 1
        rights = client.RbacAuthorizationV1Api(self.cluster.api)
        if any(one.metadata.name == RIGHTS for one in rights.list_cluster_role().items):
            return
        named = {"metadata": {"name": RIGHTS}}
        rights.create_cluster_role({**named, "rules": rules})
        group = "rbac.authorization.k8s.io"
        role = {"apiGroup": group, "kind": "ClusterRole", "name": RIGHTS}
        user = {"apiGroup": group, "kind": "User", "name": "system:kube-scheduler"}
        rights.create_cluster_role_binding({**named, "roleRef": role, "subjects": [user]})

    def _configuration(self) -> Path:
        """The chart's scheduler configuration for this cluster, without leader election."""
        configuration = yaml.safe_load(CONFIGURATION.read_text())
        configuration["clientConnection"]["kubeconfig"] = str(self._kubeconfig)
        configuration["leaderElection"] = {"leaderElect": False}
        configuration["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{self.port}"
        if not self.extended:
            del configuration["extenders"], configuration["percentageOfNodesToScore"]
        path = self.folder / "scheduler.yaml"
        path.write_text(yaml.safe_dump(configuration))
        return path


def grants(found: list[Object]) -> Counter[tuple[str, str]]:
    """The shares that Pods hold, by device and "memory" or "cores", from their objects alone."""
    held: Counter[tuple[str, str]] = Counter()
    for one in found:
        text = (one["metadata"].get("annotations") or {}).get(PLACED)
        assert bool(text) == bool(one["spec"].get("nodeName"))
        if not text or one.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        for uuid, share in totals(read_placement(text), roles(one)).items():
            assert uuid.startswith(f"GPU-{one['spec']['nodeName']}-")
            held[uuid, "memory"] += share.memory_bytes
            held[uuid, "cores"] += share.cores_permille
    return held
