"""Slurm and Munge from Debian's packages: unpacked into a folder, never installed."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "slurm"
WANTED = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")


@dataclass(frozen=True)
class Packages:
    """Unpacked packages."""

    root: Path

    def program(self, name: str) -> Path:
        """The path of a program, such as "sbatch" or "slurmd"."""
        found = [*self.root.glob(f"usr/*bin/{name}-wlm"), *self.root.glob(f"usr/*bin/{name}")]
        return found[0]

    @property
    def libraries(self) -> Path:
        return next(self.root.glob("usr/lib/*-linux-gnu"))

    @property
    def plugins(self) -> Path:
        return self.libraries / "slurm-wlm"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the programs need to find their libraries."""
        return {**os.environ, "LD_LIBRARY_PATH": f"{self.libraries}:{self.plugins}"}

    @property
    def version(self) -> str:
        """What `slurmctld -V` says."""
        command = [self.program("slurmctld"), "-V"]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


def _output(*command: str, folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-300:]
        raise SystemExit(f"Slurm cannot be fetched: `{' '.join(command[:2])}` failed: {said}")
    return done.stdout


def fetch() -> Packages:
    """The packages, fetched on first use.

    Raises:
        SystemExit: this machine cannot fetch them.
    """
    root = FOLDER / "unpacked"
    if (FOLDER / "complete").exists():
        return Packages(root)
    FOLDER.mkdir(parents=True, exist_ok=True)
    simulate = ("apt-get", "install", "--simulate", "--no-install-recommends", *WANTED)
    listed = _output(*simulate, folder=FOLDER)
    # What is installed already is not listed, and need not be unpacked.
    missing = re.findall(r"^Inst (\S+)", listed, re.MULTILINE)
    _output("apt-get", "download", "-oAPT::Sandbox::User=root", *missing, folder=FOLDER)
    for package in FOLDER.glob("*.deb"):
        _output("dpkg", "-x", str(package), str(root), folder=FOLDER)
        package.unlink()
    (FOLDER / "complete").touch()
    return Packages(root)
