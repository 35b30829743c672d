"""A cluster: up, down, and what of it runs. All that a test or a person asks for is here."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from kubernetes import client, config
from tests.kube.cluster import NotToBeHadError, cgroups, images, layout, node, programs
from tests.kube.cluster.services import ENDED
from tests.kube.cluster.toolchain import PROJECT
from tests.support import build_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kube.cluster.layout import Layout

TOOLS = ("unshare", "nsenter", "mount", "pivot_root", "ip", "iptables", "openssl")
PACKAGES = {"ip": "iproute2", "iptables": "iptables", "openssl": "openssl"}
CNI = Path("/usr/lib/cni/bridge")
NAMESPACES = ("unshare", "--pid", "--net", "--mount", "--ipc", "--fork", "--kill-child")
WATCHES = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH_WATCHES = 1024  # each container takes some; the usual limit is 128 for all together
READY_WITHIN_S = 120  # usually under thirty: others use this machine as well
DOWN_WITHIN_S = 30


class ClusterError(Exception):
    """What went wrong with a cluster, with the last lines of the log that tells why."""


@dataclass
class Cluster:
    """A cluster that is up."""

    layout: Layout
    api: client.ApiClient = field(init=False)
    _known: dict[str, psutil.Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api = config.new_client_from_config(str(self.layout.kubeconfig))
        self.core = client.CoreV1Api(self.api)

    def nodes_ready(self) -> set[str]:
        """The names of the nodes whose kubelets say they are ready."""
        return {
            node.metadata.name
            for node in self.core.list_node(_request_timeout=5).items
            for condition in node.status.conditions or []
            if condition.type == "Ready" and condition.status == "True"
        }

    def ask_kubelet(self, node: str, path: str) -> str:
        """What a node's kubelet answers at `path`, such as "stats/summary", by the API server."""
        answer = self.core.connect_get_node_proxy_with_path(
            node, path, _request_timeout=10, _preload_content=False
        )
        return answer.data.decode()

    def process(self, service: str) -> psutil.Process:
        """That of "etcd", "kube-apiserver", "node-1-kubelet", …: the name that its log has.

        Raises:
            ClusterError: it does not run.
        """
        found = self.running(service)
        if not found:
            raise ClusterError(f"{service} does not run: {_last_lines(self.layout, service)}")
        return found

    def running(self, service: str) -> psutil.Process | None:
        """The same, or nothing while it does not run."""
        if not _runs(self._known.get(service)):
            self._known = services(self.layout)  # of hundreds of processes: only when one has ended
        return self._known.get(service)

    def close(self) -> None:
        """Ends this process's connections; the cluster stays up."""
        self.api.close()
        self.api.rest_client.pool_manager.clear()

    def load(self, image: Path) -> None:
        """Gives an image (a file) to both nodes, as a registry would; what they have is no work."""
        for name in layout.NODES:
            loaded = self.layout.node(name) / f"loaded-{image.name}"
            if not loaded.exists():
                try:
                    node.load(self.layout, self.process(name).pid, image)
                except node.LoadError as error:
                    raise ClusterError(f"{name}: {error}") from error
                loaded.touch()

    def on(self, name: str, *command: str | Path) -> str:
        """What a command says that runs on a node, with the node's own files."""
        inside = node.enter(self.process(name).pid)
        done = subprocess.run(
            [*inside, *command], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise ClusterError(f"{command} on {name}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def log(self, service: str) -> str:
        """What the service has written so far."""
        return (self.layout.logs / f"{service}.log").read_text(errors="replace")


def build(state: Path = layout.STATE) -> Layout:
    """All that a cluster is started from; says what it builds, and how long that takes.

    Raises:
        NotToBeHadError: this machine cannot have one, and why.
    """
    _need()
    return layout.Layout(state.resolve(), programs.build(), (images.pause(), images.debian()))


def up(state: Path = layout.STATE) -> Cluster:
    """The cluster of that directory; one that is up already, or else a new one.

    Raises:
        NotToBeHadError: this machine cannot have one, and why.
        ClusterError: it did not come up.
    """
    wanted = build(state)
    with build_cache.alone_with(state):
        if _keeper(state) and layout.stored(state) == wanted:
            with contextlib.suppress(ClusterError):  # whoever started it may have been killed
                return _when_ready(wanted, READY_WITHIN_S)
        _down(state)
        _start(wanted)
        try:
            return _when_ready(wanted, READY_WITHIN_S)
        except BaseException:
            _down(state, keep_logs=True)
            raise


def down(state: Path = layout.STATE) -> None:
    """Ends all of it and removes its files; nothing is done where nothing is.

    Raises:
        ClusterError: something of it is left, and what.
    """
    with build_cache.alone_with(state):
        _down(state)


def services(own: Layout) -> dict[str, psutil.Process]:
    """What runs of the cluster, by the name of its log."""
    keeper = _keeper(own.state)
    if not keeper:
        return {}
    found = {"keeper": keeper}
    for process in _below(keeper):
        with contextlib.suppress(psutil.Error):
            name = Path((process.cmdline() or [""])[0]).name
            node = _node_of(process)
            if name.startswith("kube-") or name in {"etcd", "coredns", "kubelet", "containerd"}:
                found[f"{node}-{name}" if node else name] = process
            elif node and process.ppid() and "tests.kube.cluster.node" in process.cmdline():
                found[node] = process
    return found


def _runs(process: psutil.Process | None) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        if process is not None and process.is_running():
            return process.status() != psutil.STATUS_ZOMBIE
    return False


def _node_of(process: psutil.Process) -> str:
    for above in (process, *process.parents()):
        line = above.cmdline()
        if "tests.kube.cluster.node" in line and Path(line[0]).name != "unshare":
            return line[line.index("tests.kube.cluster.node") + 2]
    return ""


def _below(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _keeper(state: Path) -> psutil.Process | None:
    """The process that was born with the lock; its number alone could be another's by now."""
    until = time.monotonic() + DOWN_WITHIN_S
    while (number := _holder(state / "keeper")) == "" and time.monotonic() < until:
        time.sleep(0.05)  # just born: it has not said its number yet
    if number == "":
        raise ClusterError(f"somebody holds {state}/keeper and does not say who")
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(int(number)) if number else None
    return None


def _holder(lock: Path) -> str | None:
    """What the file says, if somebody has it locked."""
    with contextlib.suppress(FileNotFoundError), lock.open() as told:
        try:
            fcntl.flock(told, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return told.read()
    return None


def _need() -> None:
    if os.geteuid() != 0:
        raise NotToBeHadError("a cluster needs root: namespaces, mounts and cgroups of its own")
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    packages = [PACKAGES.get(tool, "util-linux") for tool in missing]
    if not CNI.exists():
        packages.append("containernetworking-plugins")
    if packages:
        try:
            images.containers.install(*sorted(set(packages)))
        except images.containers.NotToBeHadError as error:
            raise NotToBeHadError(f"a cluster needs {', '.join(packages)}: {error}") from error
    if not cgroups.hierarchies():
        raise NotToBeHadError("a cluster needs cgroups, and none are mounted at /sys/fs/cgroup")
    if not os.access(cgroups.hierarchies()[0], os.W_OK):
        raise NotToBeHadError("a cluster needs cgroups of its own, and may make none here")


def _start(own: Layout) -> None:
    """Starts the keeper, which does all else: what it makes ends or is found with it."""
    _allow_watches()
    own.logs.mkdir(parents=True)
    own.save()
    with (
        own.keeper.open("w") as told,
        socket.create_server(("127.0.0.1", 0), backlog=512) as listening,
        (own.logs / "keeper.log").open("ab") as log,
    ):
        fcntl.flock(told, fcntl.LOCK_EX)
        fds = (told.fileno(), listening.fileno())
        inside = ("-m", "tests.kube.cluster.keeper", own.state, *map(str, fds))
        subprocess.Popen(
            [*NAMESPACES, sys.executable, *inside],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=fds,
            start_new_session=True,
        ).returncode = 0  # it stays when this process ends: nobody here waits for it


def _allow_watches() -> None:
    """A kubelet that may not watch its directory starts all the same, and never finds a plugin.

    The limit is the machine's: it is raised where it is too low, and stays so.
    """
    with contextlib.suppress(OSError, ValueError):
        if int(WATCHES.read_text()) < ENOUGH_WATCHES:
            WATCHES.write_text(str(ENOUGH_WATCHES))


def _when_ready(own: Layout, within_s: float) -> Cluster:
    until = time.monotonic() + within_s
    why = "nothing answered"
    while time.monotonic() < until:
        time.sleep(0.2)
        if not _keeper(own.state) and time.monotonic() > until - within_s + 5:
            raise ClusterError(f"the keeper ended: {_last_lines(own, 'keeper')}")
        missing = [n for n in layout.NODES if not (own.node(n) / "images").exists()]
        if missing:
            why = f"no images on {missing}: {_last_lines(own, missing[0])}"
            continue
        try:
            found = Cluster(own)
            if not (missing := set(layout.NODES) - found.nodes_ready()):
                found.core.read_namespaced_service_account("default", "default")
                return found
            why = f"not ready: {sorted(missing)}"
        except Exception as error:  # noqa: BLE001  # whatever the client makes of a server half up
            why = str(error).strip()[-300:]
    ended = "".join(_ends(own)) or "no service ended; "
    raise ClusterError(f"not up within {within_s:g} s: {why}; {ended}logs: {own.logs}")


def _ends(own: Layout) -> Iterator[str]:
    """What each service that keeps ending said before it did."""
    for log in sorted(own.logs.glob("*.log")):
        said, mark, after = log.read_text(errors="replace").rpartition(f"--- {log.stem} {ENDED}")
        if mark:
            yield f"{log.stem} {ENDED}{after.split(',')[0]}: {said.strip()[-300:]!r}; "


def _last_lines(own: Layout, service: str) -> str:
    log = own.logs / f"{service}.log"
    return log.read_text(errors="replace")[-600:] if log.exists() else "it wrote nothing"


def _down(state: Path, *, keep_logs: bool = False) -> None:
    if keeper := _keeper(state):
        with _watched(keeper):
            keeper.send_signal(signal.SIGKILL)
    if left := cgroups.remove(layout.cgroup(state), DOWN_WITHIN_S):
        raise ClusterError(f"cgroups left, with processes in them: {left}")
    if not state.exists():
        return
    for path in state.iterdir():
        if not (keep_logs and path.name == "logs"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not keep_logs:
        state.rmdir()


@contextlib.contextmanager
def _watched(keeper: psutil.Process) -> Iterator[None]:
    """Until the keeper is gone or a zombie: only then has all below it ended."""
    yield
    until = time.monotonic() + DOWN_WITHIN_S
    with contextlib.suppress(psutil.NoSuchProcess):  # gone while it is looked at
        while keeper.is_running() and keeper.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > until:
                raise ClusterError(f"process {keeper.pid} does not end; below it: {_below(keeper)}")
            time.sleep(0.05)
