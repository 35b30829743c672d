"""A private Slurm of one node on this machine: munged, slurmctld and slurmd on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.slurm.packages import Packages
    from typing_extensions import Self

CPUS = 2
UP_WITHIN_S = 30
# The scheduler's periods are as short as they can be: what is measured is not their waiting.
CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SchedulerTimeSlice=5
PreemptMode=SUSPEND,GANG
PreemptType=preempt/partition_prio
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 OverSubscribe=FORCE:1 PreemptMode=SUSPEND
PartitionName=urgent Nodes={host} PriorityTier=10 OverSubscribe=FORCE:1 PreemptMode=OFF State=UP
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Slurm:
    """Slurm's daemons. Use it as a context manager: it ends all that it started."""

    def __init__(self, packages: Packages, folder: Path) -> None:
        self.packages = packages
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._jobs: list[str] = []

    def __enter__(self) -> Self:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=host, folder=self.folder, plugins=self.packages.plugins, cpus=CPUS,
                controller_port=_free_port(), node_port=_free_port(),
            )
        )  # fmt: skip
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs:
            self.end(job)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    @property
    def environment(self) -> dict[str, str]:
        return {**self.packages.environment, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, program: str, *arguments: str, check: bool = True) -> str:
        """What a client of Slurm's says. Raises SystemExit with its message if it fails."""
        command = [str(self.packages.program(program)), *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        if check and done.returncode:
            raise SystemExit(f"{program} failed: {done.stderr.strip()[-500:]}")
        return done.stdout.strip()

    def submit(self, partition: str, cpus: int, script: Path) -> str:
        """Submits a job with sbatch; returns its number."""
        words = ("--parsable", f"--partition={partition}", f"--ntasks={cpus}", "--output=/dev/null")
        job = self.run("sbatch", *words, str(script))
        self._jobs.append(job)
        return job

    @contextmanager
    def submitted(self, way: str, partition: str, cpus: int, script: Path) -> Iterator[str]:
        """Submits a job by "sbatch" or "srun"; yields its name, by which it is ended."""
        if way == "sbatch":
            yield self.submit(partition, cpus, script)
            return
        name = script.stem
        words = (f"--partition={partition}", f"--cpus-per-task={cpus}", f"--job-name={name}")
        command = [str(self.packages.program("srun")), *words, str(script)]
        with subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as client:
            try:
                yield f"--name={name}"
            finally:
                client.terminate()  # a second signal ends the job at once
                time.sleep(0.1)
                client.terminate()

    def end(self, job: str) -> None:
        """Ends a job, by its number or "--name=NAME", and waits until it has ended."""
        self.run("scancel", "--signal=KILL", "--full", job, check=False)
        self.run("scancel", job, check=False)
        until = time.monotonic() + 30
        listed = job if job.startswith("--name") else f"--jobs={job}"
        while self.run("squeue", "--noheader", listed, check=False) and time.monotonic() < until:
            time.sleep(0.1)

    def _start(self) -> None:
        munge = {name: self.folder / f"munge.{name}" for name in ("key", "socket", "pid", "log")}
        munge["key"].write_bytes(os.urandom(1024))
        munge["key"].chmod(0o600)
        self.folder.chmod(0o755)
        self._spawn(
            "munged", "--foreground", "--force", f"--key-file={munge['key']}",
            f"--socket={munge['socket']}", f"--pid-file={munge['pid']}",
            f"--log-file={munge['log']}", f"--seed-file={self.folder}/munge.seed",
        )  # fmt: skip
        _wait(munge["socket"].exists, "munged made no socket")
        configuration = str(self.folder / "slurm.conf")
        self._spawn("slurmctld", "-D", "-c", "-f", configuration)
        step = str(self.packages.program("slurmstepd"))
        self._spawn("slurmd", "-D", "-f", configuration, "-d", step)
        _wait(self._is_up, f"the node is not up; see {self.folder}")

    def _is_up(self) -> bool:
        return self.run("sinfo", "--noheader", "--format=%T", check=False).startswith("idle")

    def _spawn(self, program: str, *arguments: str) -> None:
        with (self.folder / f"{program}.out").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    [self.packages.program(program), *arguments],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )


def _wait(condition: Callable[[], bool], failure: str) -> None:
    until = time.monotonic() + UP_WITHIN_S
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"Slurm did not start: {failure}")
        time.sleep(0.05)
