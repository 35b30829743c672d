"""Reboot of a machine whose state directory survives it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agent.conftest import wait_until
from tests.agent.support.programs import backlogged

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def metered_s(node, tenant):
    done = node("usage", "--since=1h", "-o", "json", f"--meter-dir={node.state}-meter")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["usage"]
    return sum(row["device_seconds"] for row in rows if row["tenant"] == tenant)


def test_tenants_of_a_former_boot_end_what_they_used_stays_and_their_names_are_free(node):
    program = node.launch(node.tenant("t", cores=900), *backlogged(600))
    wait_until(lambda: metered_s(node, "t") > 0.3)
    program.kill()
    program.wait()
    node.kill()  # and with it, as by a reboot, whatever else there was
    mark = node.state / "boot"
    assert mark.read_text() == BOOT_ID.read_text().strip()
    node.start()  # no reboot yet: it is taken up
    with node.client() as agent:
        assert [one.name for one in agent.tenants()] == ["t"]
    node.kill()
    before = metered_s(node, "t")

    mark.write_text("f3b1c1de-0000-4000-8000-000000000000")
    node.start()
    line = json.loads(node.process.stderr.readline())
    assert (line["event"], line["ended"]) == ("the machine was rebooted", ["t"])
    with node.client() as agent:
        assert agent.tenants() == []
        told = [one.event for one in agent.events("t")]
    assert told[-1] == "rebooted", told  # its last events are kept
    assert mark.read_text() == BOOT_ID.read_text().strip()
    assert metered_s(node, "t") >= before
    again = node.launch(node.tenant("t", cores=900), *backlogged(600))
    wait_until(lambda: node.usage("t").devices[0].launches > 50)
    assert again.poll() is None
    wait_until(lambda: metered_s(node, "t") > before)
