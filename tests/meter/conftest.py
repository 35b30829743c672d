"""A real tenant on a simulated device, for the tests that need a real usage page."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Penstock, end_members
from tests.meter.support.scrapes import Run, node_snapshot, scrape

from penstock.node.metering import clock
from penstock.node.metering.exporter import Exporter
from penstock.node.metering.meter import Meter
from penstock.node.metering.reading import identity_of, reading_of
from penstock.node.tenants.tenant import Tenant
from penstock.node.tenants.tenant_events import read_events
from penstock_shim.pages import read_usage

WORKER = Path(__file__).parents[1] / "cli" / "support" / "gpu_worker.py"


@pytest.fixture
def penstock(tmp_path):
    """The real command line, with a state directory of its own."""
    harness = Penstock(tmp_path / "state")
    yield harness
    for process in harness.started:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
    end_members(harness.state)


@pytest.fixture
def run(penstock, tmp_path):
    worker = penstock.start("--name=t", "--", sys.executable, str(WORKER), stdin=subprocess.PIPE)
    assert worker.stdout.readline() == "ready\n"
    tenant = Tenant(penstock.state / "tenants" / "t")
    grant = tenant.grant()
    where = {"namespace": "ml", "pod": 'p"0\\', "container": "main"}
    who = identity_of(tenant, grant, where)
    meter = Meter(tmp_path / "meter")
    meter.observe(clock.now(), [reading_of(who, grant, read_usage(tenant.usage_page))])
    for command, answer in (
        ("alloc 512", "ok"), ("alloc 9000", "CUDA_ERROR_OUT_OF_MEMORY"), ("load 1", "ok"),
    ):  # fmt: skip
        worker.stdin.write(command + "\n")
        worker.stdin.flush()
        assert worker.stdout.readline().strip() == answer
    deadline = time.monotonic() + 20
    while "deny" not in {event["event"] for event in read_events(tenant.directory)}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    exporter = Exporter("node-1")
    port = exporter.serve(port=0)
    assert scrape(port).strip() == ""  # nothing is made up before the first round
    usage = read_usage(tenant.usage_page)
    at = clock.now()
    meter.observe(at, [reading_of(who, grant, usage)])
    assert meter.flush(at, wait_s=10)
    snapshot = node_snapshot(tenant, grant, who, usage=usage, meter=meter, at=at)
    exporter.publish(lambda: snapshot, loop_s=0.004)
    exporter.publish(lambda: snapshot, loop_s=0.3)
    charged_ns = meter.used(who.incarnation, grant.devices[0].uuid).charged_ns
    yield Run(scrape(port), usage, grant, charged_ns)
    exporter.close()
    meter.close()
