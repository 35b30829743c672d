"""The first process of a node: `node STATE NAME KEEPER` makes it look like a machine of its own.

The node sees this machine's files through an overlay of its own: what kubelet, containerd and Pods
write anywhere stays below STATE/NAME. When this process ends the node is off; the keeper then
boots it again, with the same disk.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from tests.kube.cluster import cgroups, layout
from tests.kube.cluster.services import Services
from tests.kube.cluster.toolchain import PROJECT

if TYPE_CHECKING:
    from tests.kube.cluster.layout import Layout

SOCKET = "/run/containerd/containerd.sock"
# kubelet sets these for the whole machine, unless it finds them as it wants them: in a node it
# does.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main(state: Path, node: str, keeper: str) -> None:
    """Boots the node and keeps its services up; `keeper` is a process in the control plane."""
    own = layout.stored(state)
    if own is None:
        raise SystemExit(f"no cluster is laid out in {state}")
    # A machine that boots has none: kubelets ask long for what was in those of its last life.
    cgroups.remove(own.cgroup(node))
    cgroups.make(own.cgroup(node))
    _cable(node, keeper)
    _disk(own, node)
    _run("hostname", node)
    _gateway(node)
    _configure(own, node)
    services = Services(own.logs)
    services.start(f"{node}-containerd", own.programs / "containerd", "--config", CONTAINERD)
    _await_containerd(own)
    sandbox, *others = own.images
    _import(own, sandbox)
    services.start(f"{node}-kubelet", *_kubelet(own, node))
    services.start(f"{node}-kube-proxy", *_kube_proxy(own, node))
    imported = own.node(node) / "images"
    if not imported.exists():  # the disk outlives a boot
        for image in others:
            _import(own, image)
        imported.touch()
    services.tend(own.keeper)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, timeout=120)


def _cable(node: str, keeper: str) -> None:
    """From this node to the LAN's switch; a cable of the node's last boot may still be going."""
    outside = Path("/proc", keeper, "ns", "net")
    plug = ("ip", "link", "add", "eth0", "type", "veth", "peer", "name", node, "netns", outside)
    until = time.monotonic() + 10
    while subprocess.run(plug, check=False).returncode:
        if time.monotonic() > until:
            raise SystemExit(f"{node}: no cable to the LAN")
        time.sleep(0.2)
    _run("nsenter", f"--net={outside}", "ip", "link", "set", node, "master", "lan", "up")


def _gateway(node: str) -> None:
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{layout.node_address(node)}/24", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")
    _run("ip", "route", "add", "default", "via", layout.API_ADDRESS)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _disk(own: Layout, node: str) -> None:
    """All of this machine's files, written nowhere but below the node's own folder."""
    folder = own.node(node)
    root = folder / "root"
    for name in ("root", "written", "work", "containerd", "kubelet"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    layers = f"lowerdir=/,upperdir={folder}/written,workdir={folder}/work"
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "overlay", node, "-o", layers, root)
    _run("mount", "--rbind", "/dev", root / "dev")
    _run("mount", "-t", "tmpfs", "tmpfs", root / "dev/shm")
    _run("mount", "--rbind", "/sys", root / "sys")
    _run("mount", "-t", "proc", "proc", root / "proc")
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "run")
    # As they are and as they become, not as they were when the overlay was made; and containerd's
    # own overlays cannot lie on one.
    for source, place in (
        (PROJECT, PROJECT),
        (own.state, own.state),
        (folder / "containerd", Path("/var/lib/containerd")),
        (folder / "kubelet", Path("/var/lib/kubelet")),
    ):
        inside = root / place.relative_to("/")
        inside.mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", source, inside)
    outer = root / "old-root"
    outer.mkdir(exist_ok=True)
    _run("pivot_root", root, outer)
    _run("umount", "--lazy", "/old-root")
    Path("/old-root").rmdir()
    _run("mount", "--make-rshared", "/")
    # The kernel lets a user namespace mount /proc only where one is whole, as below it is not.
    whole = Path("/run/whole-proc")
    whole.mkdir(mode=0o700)
    _run("mount", "-t", "proc", "proc", whole)
    for name, value in SYSCTLS.items():
        as_wanted = Path("/run/sysctls", name)
        as_wanted.parent.mkdir(parents=True, exist_ok=True)
        as_wanted.write_text(value + "\n")
        _run("mount", "--bind", as_wanted, Path("/proc/sys", name))


CONTAINERD = Path("/etc/containerd/config.toml")
CONTAINERD_CONFIG = """\
version = 3
[grpc]
  address = "{socket}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "penstock.test/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  # without CAP_SYS_RESOURCE no process may make itself less likely to be killed
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/kubernetes/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{programs}/runc"
"""
CNI = """\
{{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{network}"}}]],
            "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"""


def _configure(own: Layout, node: str) -> None:
    for path, text in (
        (CONTAINERD, CONTAINERD_CONFIG.format(socket=SOCKET, programs=own.programs)),
        (Path("/etc/kubernetes/cni/pods.conflist"), CNI.format(network=layout.pod_network(node))),
        (Path("/etc/kubernetes/kubelet.yaml"), yaml.safe_dump(_kubelet_configuration(own, node))),
        (Path("/etc/kubernetes/resolv.conf"), "# no name server: nothing leads out of here\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _kubelet_configuration(own: Layout, node: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(own.secrets / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(own.secrets / f"{node}.crt"),
        "tlsPrivateKeyFile": str(own.secrets / f"{node}.key"),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "clusterDNS": [layout.API_ADDRESS],
        "clusterDomain": layout.DOMAIN,
        "resolvConf": "/etc/kubernetes/resolv.conf",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": str(own.cgroup(node)),
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # The disk is this machine's, and how full that is is no fault of the node's.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": False,
        # Tests wait for containers to be started again, not for the usual ten seconds and more.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
    }


def _kubelet(own: Layout, node: str) -> list[str | Path]:
    return [
        own.programs / "kubelet",
        "--config=/etc/kubernetes/kubelet.yaml",
        f"--kubeconfig={own.secrets}/{node}.kubeconfig",
        f"--hostname-override={node}",
        f"--node-ip={layout.node_address(node)}",
        "--housekeeping-interval=3s",  # how often Pods' use is measured; usually ten
    ]


def _kube_proxy(own: Layout, node: str) -> list[str | Path]:
    return [
        own.programs / "kube-proxy",
        f"--kubeconfig={own.secrets}/kube-proxy.kubeconfig",
        f"--hostname-override={node}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={layout.PODS}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]


def _ctr(own: Layout, *arguments: str | Path) -> list[str | Path]:
    return [own.programs / "ctr", "--address", SOCKET, "--namespace", "k8s.io", *arguments]


def _await_containerd(own: Layout) -> None:
    until = time.monotonic() + 60
    quiet = subprocess.DEVNULL
    while subprocess.run(_ctr(own, "version"), stdout=quiet, stderr=quiet, check=False).returncode:
        if time.monotonic() > until:
            raise SystemExit("containerd did not answer within 60 s")
        time.sleep(0.1)


def _import(own: Layout, image: Path) -> None:
    _run(*_ctr(own, "images", "import", image))


class LoadError(Exception):
    """An image that a node's containerd does not take."""


def enter(pid: int) -> list[str]:
    """The beginning of a command line that runs on the node whose first process has that `pid`."""
    return ["nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--pid", "--ipc"]


def load(own: Layout, pid: int, image: Path) -> None:
    """Gives a running node an image."""
    command = [*enter(pid), *_ctr(own, "images", "import", image)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise LoadError(f"{image} cannot be loaded: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
