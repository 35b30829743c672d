"""A private PostgreSQL server from Debian's packages, on a Unix socket, under its own user."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.containers.support.images import install

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "postgres"  # PostgreSQL refuses to run as root; the package makes this user


def programs() -> Path:
    """The folder with initdb and pg_ctl; installs the package first. Raises NotToBeHadError."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        install("postgresql")
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1]


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Runs a server in `folder` and yields the URL of its database; stops it at the end."""
    bin_folder = programs()
    shutil.chown(folder, USER, USER)
    data = folder / "data"

    def as_user(program: str, *arguments: str) -> None:
        command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups",
                   str(bin_folder / program), *arguments]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    as_user("initdb", "-D", str(data), "-A", "trust", "--no-sync")
    options = f"-k {folder} -c listen_addresses='' -c shared_buffers=16MB"
    as_user("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-w", "-o", options, "start")
    try:
        yield f"postgresql+psycopg://{USER}@/postgres?host={folder}"
    finally:
        as_user("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
