"""Keeps the state that an agent of this release leaves on disk, for later releases to read.

`python -m tests.upgrade.support.make_golden NAME`, once a release: NAME is its version. It makes
`golden/NAME/`, as the next agent finds it: a tenant that computed and holds memory,
one that an operator suspended, one that enforcement stopped, and the meter's file.

It needs root, as it runs in a time namespace in which the machine has just started: times on disk
count from the machine's start, and those of a machine that ran for days lie ahead on most others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.agent.conftest import GIB, Node, wait_until
from tests.agent.support.programs import backlogged, start_past_the_shim

from penstock.node.admission.resize import Resize
from penstock_shim.pages import read_quota, read_usage

GOLDEN = Path(__file__).parents[1] / "golden"
PAGES = ("quota", "usage")
# What stands for the places of the machine that it was made on.
STATE, DRIVER = "/run/penstock", "/usr/lib/penstock/sim"
BOOT = "00000000-0000-0000-0000-000000000000"
_PATHS = {"driver_path": (96, f"{DRIVER}/libcuda.so.1"),
          "nvml_path": (352, f"{DRIVER}/libnvidia-ml.so.1")}  # fmt: skip
_PATH_BYTES = 256
YOUNG_S = 60  # tests begin later than that after the start of a machine


def with_paths(page: bytes, paths: dict[str, str]) -> bytes:
    """A quota page of version 2 with other libraries in it."""
    changed = bytearray(page)
    for name, (offset, _) in _PATHS.items():
        changed[offset : offset + _PATH_BYTES] = paths[name].encode().ljust(_PATH_BYTES, b"\0")
    return bytes(changed)


def live(node: Node) -> int:
    """Creates tenants of every kind; returns the pid of one that is stopped amid its work."""
    computing = node.tenant("t", cores=300, memory=3 * GIB, labels={"team": "vision"})
    program = node.launch(computing, *backlogged(600), "--copy-bytes", str(8 << 20))
    node.tenant("held", cores=100, memory=GIB)
    bad = node.tenant("bad", cores=200, memory=GIB, measured="suspend", grace_ns=10**9)
    start_past_the_shim(node, bad)
    with node.client() as agent:
        agent.suspend("held", "maintenance")
        agent.resize("t", Resize(cores_permille=350, mode="elastic"))
    wait_until(lambda: [e for e in node.events("bad") if e["event"] == "suspend"], 40)
    wait_until(lambda: node.usage("t").devices[0].spent_ns > 10**9)
    return program.pid


def told(tenants: Path) -> dict[str, object]:
    """The pages as this release reads them."""
    found: dict[str, object] = {}
    for directory in sorted(tenants.iterdir()):
        usage = read_usage(directory / "usage")
        found[directory.name] = {
            "limits": dataclasses.asdict(read_quota(directory / "quota").limits),
            "device": dataclasses.asdict(usage.devices[0]),
            "slots": [{"command": one.command, "charged_bytes": one.charged_bytes[0],
                       "pid": one.pid} for one in usage.slots],
        }  # fmt: skip
    return found


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def metered(file: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(file)) as store:
        store.execute("UPDATE account SET boot_id = ?", (BOOT,))
        store.commit()
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.execute("PRAGMA journal_mode=DELETE")
        rows = store.execute(
            "SELECT tenant, SUM(charged_ns) FROM usage JOIN account ON account.id = account_id "
            "JOIN tenant ON tenant.id = tenant_id GROUP BY tenant"
        )
        return dict(rows.fetchall())


def metered_at_ns(file: Path) -> int:
    """CLOCK_MONOTONIC of the newest reading in a meter's file."""
    with contextlib.closing(sqlite3.connect(file)) as store:
        (newest,) = store.execute("SELECT MAX(mono_ns) FROM account").fetchone()
    return int(newest)


def keep(node: Node, target: Path, neutral: dict[str, str]) -> None:
    """Copies the state directory, without this machine's paths."""

    def text(file: Path) -> str:
        content = file.read_text()
        for path, name in neutral.items():
            content = content.replace(path, name)
        return content

    for directory in sorted((node.state / "tenants").iterdir()):
        kept = target / "tenants" / directory.name
        kept.mkdir(parents=True)
        for name in ("grant.yaml", "events.jsonl", "enforce.json"):
            if (directory / name).exists():
                (kept / name).write_text(text(directory / name))
        for name in PAGES:
            page = (directory / name).read_bytes()
            if name == "quota":
                page = with_paths(page, {key: path for key, (_, path) in _PATHS.items()})
            (kept / f"{name}.gz").write_bytes(gzip.compress(page, mtime=0))
    (target / "meter.db").write_bytes((Path(f"{node.state}-meter") / "meter.db").read_bytes())


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder) / "state", "--node=golden")
        try:
            node.start()
            pid = live(node)
            os.kill(pid, signal.SIGSTOP)
            node.stop()
            target = GOLDEN / name
            target.mkdir(parents=True)
            sums = metered(Path(f"{node.state}-meter") / "meter.db")
            neutral = {str(node.state): STATE, sys.prefix: "/opt/penstock", boot_id(): BOOT}
            keep(node, target, neutral)
            expected = {"pages": told(node.state / "tenants"), "metered_ns": sums}
            (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        finally:
            for program in node.programs:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(program.pid, signal.SIGCONT)
            node.close()


def as_on_a_young_machine(name: str) -> None:
    """Restarts this program in a young time namespace, unless it runs in one."""
    too_much_s = int(time.monotonic()) - YOUNG_S // 2
    if too_much_s < YOUNG_S:
        return
    clock = ("unshare", "--time", f"--monotonic=-{too_much_s}", "--fork")
    again = [*clock, sys.executable, "-m", "tests.upgrade.support.make_golden", name]
    sys.exit(subprocess.run(again, check=False).returncode)


if __name__ == "__main__":
    as_on_a_young_machine(sys.argv[1])
    main(sys.argv[1])
