"""A real systemd as process 1 of namespaces of its own, over a throw-away layer of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
# It starts nothing but its journal: services of this machine would meddle with its kernel.
BOOT = r"""
set -e
mount --make-rprivate /
mkdir -p $BASE/layer $BASE/root
mount -t tmpfs tmpfs $BASE/layer
mkdir $BASE/layer/upper $BASE/layer/work
LAYERS=lowerdir=/,upperdir=$BASE/layer/upper,workdir=$BASE/layer/work
mount -t overlay overlay -o $LAYERS $BASE/root
R=$BASE/root
for place in $PLACES; do
  if ! test -e $R$place/.; then mkdir -p $R$place; fi
  mount --rbind -o ro $place $R$place
done
mount -t proc proc $R/proc
mount -t sysfs -o ro sysfs $R/sys
mount -t cgroup2 cgroup2 $R/sys/fs/cgroup
for place in run dev; do mount -t tmpfs -o mode=755 tmpfs $R/$place; done
for device in null zero full random urandom tty; do
  touch $R/dev/$device; mount --bind /dev/$device $R/dev/$device
done
mkdir $R/dev/shm $R/dev/pts
mount -t tmpfs tmpfs $R/dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts $R/dev/pts
ln -s pts/ptmx $R/dev/ptmx; ln -s /proc/self/fd $R/dev/fd
SYSTEM=$(dirname $SYSTEMD)/system
for target in sysinit basic multi-user sockets timers local-fs; do
  if test -d $R$SYSTEM/$target.target.wants; then
    mount -t tmpfs tmpfs $R$SYSTEM/$target.target.wants
  fi
done
mount -t tmpfs tmpfs $R/etc/systemd/system
mkdir $R/etc/systemd/system/sysinit.target.wants
ln -s $SYSTEM/systemd-journald.service $R/etc/systemd/system/sysinit.target.wants/
: > $R/etc/fstab; rm -f $R/etc/machine-id; : > $R/etc/machine-id
ip link set lo up
# No kernel modules, clock, reboot or raw devices of the machine's for it.
exec setpriv --bounding-set -sys_module,-sys_boot,-sys_time,-sys_rawio \
  chroot $R env -i container=penstock-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  $SYSTEMD --system --unit=multi-user.target --log-target=journal --show-status=0
"""


class NotToBeHadError(Exception):
    """No systemd can run here; the message says why."""


def _systemd() -> str:
    for place in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd"):
        if Path(place).exists():
            return place
    raise NotToBeHadError("there is no systemd on this machine")


def _cgroup() -> Path:
    """A cgroup of version 2 that may have children. Raises NotToBeHadError."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            own = Path("/proc/self/cgroup").read_text()
            inside = re.search(r"^0::/(.*)$", own, re.MULTILINE)
            folder = Path(fields.split()[4], inside[1] if inside else "", f"penstock-{os.getpid()}")
            try:
                folder.mkdir()
            except OSError as error:
                raise NotToBeHadError(f"no cgroup can be made: {error}") from error
            return folder
    raise NotToBeHadError("cgroups of version 2 are not mounted")


class Booted:
    """Boots, installs this penstock at /opt/penstock of that machine, and runs commands there."""

    def __init__(self, base: Path) -> None:
        """Raises NotToBeHadError."""
        if os.geteuid() != 0:
            raise NotToBeHadError("a systemd of its own needs root")
        for program in ("unshare", "nsenter", "setpriv", "ip"):
            if not shutil.which(program):
                raise NotToBeHadError(f"there is no {program}")
        self.base = base
        base.mkdir()
        self.log = base / "console"
        environment = {
            **os.environ,
            "BASE": str(base),
            "SYSTEMD": _systemd(),
            "PLACES": " ".join(str(one) for one in self._places()),
        }
        self.cgroup = _cgroup()
        self.pid = 0
        self.programs: list[subprocess.Popen[str]] = []
        enter = f"echo $$ > {self.cgroup}/cgroup.procs; exec unshare --mount --pid --fork "
        enter += '--kill-child --cgroup --uts --ipc --net sh -c "$1"'
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", enter, "sh", BOOT], env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_until_it_runs()
            self._install_python()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _places() -> list[Path]:
        """Directories of this machine that may lie on other file systems than its root."""
        places = {REPOSITORY, Path(sys.prefix), Path(sys.base_prefix).resolve()}
        return sorted(place for place in places if place.stat().st_dev != Path("/").stat().st_dev)

    def _wait_until_it_runs(self) -> None:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + 60
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise NotToBeHadError(f"systemd does not run: {self.log.read_text()[-500:]}")
            with contextlib.suppress(OSError):
                self.pid = int(children.read_text().split()[0] if children.read_text() else 0)
                if self.pid and Path(f"/proc/{self.pid}/comm").read_text() == "systemd\n":
                    state = self("systemctl", "is-system-running", check=False).stdout.strip()
                    if state in {"running", "degraded"}:
                        return
            time.sleep(0.05)

    def _install_python(self) -> None:
        """Makes a virtual environment at /opt/penstock with the packages of ours."""
        self("python", "-m", "venv", "--without-pip", "/opt/penstock", python=True)
        (packages,) = Path(sys.prefix).glob("lib/python3*/site-packages")
        inside = f"/opt/penstock/{packages.relative_to(sys.prefix)}"
        self("mount", "--bind", str(packages), inside)
        script = (Path(sys.prefix) / "bin/penstock").read_text().partition("\n")[2]
        self.write("/opt/penstock/bin/penstock", f"#!/opt/penstock/bin/python3\n{script}")
        self("chmod", "755", "/opt/penstock/bin/penstock")

    def __call__(
        self, *command: str, check: bool = True, python: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Runs the command there to its end. `python`: with the interpreter of our environment."""
        words = list(command)
        if python:
            words[0] = str(Path(sys.base_prefix).resolve() / "bin/python3")
        done = subprocess.run(
            [*self._entered(), *words], capture_output=True, text=True, timeout=60, check=False,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Starts the command there in the background."""
        program = subprocess.Popen(
            [*self._entered(), *command], text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        )  # fmt: skip
        self.programs.append(program)
        return program

    def _entered(self) -> list[str]:
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--root", "--wd"]
        return ["nsenter", "--target", str(self.pid), *spaces]

    def path(self, file: str) -> Path:
        """A file of that machine as this one sees it."""
        return Path(f"/proc/{self.pid}/root{file}")

    def write(self, file: str, text: str) -> None:
        self.path(file).write_text(text)

    def show(self, *properties: str) -> dict[str, str]:
        """Properties of the agent's service, by systemd."""
        listed = ",".join(properties)
        said = self("systemctl", "show", "-p", listed, "penstock-agent").stdout.splitlines()
        return dict(line.split("=", 1) for line in said)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)  # process 1: all of its namespace ends
            self.process.kill()
        self.process.wait()
        for program in self.programs:
            program.kill()
            program.communicate()
        deadline = time.monotonic() + 10
        while self.cgroup.exists() and time.monotonic() < deadline:
            for folder, _, _ in os.walk(self.cgroup, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)  # noqa: PTH106 - as os.walk names it
            time.sleep(0.02)
