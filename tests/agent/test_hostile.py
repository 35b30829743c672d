"""A tenant that attacks its own files and socket harms only itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.agent.conftest import request, wait_until
from tests.agent.support.other_user import as_nobody
from tests.agent.support.programs import backlogged, environment_for, open_to_nobody
from tests.agent.support.readings import known

from penstock_shim.pages import page_bytes

NOBODY = 65534
HOSTILE = Path(__file__).with_name("support") / "hostile_tenant.py"
ROOT = str(Path(__file__).parents[2])
SECONDS = 8
GRANT = (
    "granted = agent.grant(Request(command=('x',), memory_bytes=[4 << 30], cores_permille=[200], "
    "name='bad', lifetime='until-revoked', measured='deny')); "
    "import json; print(json.dumps(dict(granted.environment)))"
)
pytestmark = [
    pytest.mark.timed,
    pytest.mark.skipif(os.geteuid() != 0, reason="has tenants of another user"),
]


@pytest.fixture
def node(make_node):
    """A node that takes no measures against users' tenants, so that tests can observe them."""
    return make_node("--measured=deny")


@pytest.fixture
def granted_to_nobody(node):
    """The environment of a tenant that another user requested."""
    answer = as_nobody(node, GRANT).splitlines()
    (node.state / "machines" / "h200x1").chmod(0o666)  # as a GPU's device node is

    class Granted:
        environment = json.loads(answer[0])

    return Granted


def share_of(node, name: str, seconds: float) -> float:
    """The tenant's charged share of the device, in percent."""
    before, began = node.usage(name).devices[0].spent_ns, time.monotonic_ns()
    time.sleep(seconds)
    after, ended = node.usage(name).devices[0].spent_ns, time.monotonic_ns()
    return (after - before) / (ended - began) * 100


def metered_ns(node, name: str) -> float:
    """The tenant's metered device time after its end and the agent's."""
    with node.client() as agent:
        agent.revoke(name, 0)
    assert node.stop() == 0
    shown = node("usage", name, "--since=1h", "-o", "json", f"--meter-dir={node.state}-meter")
    (row,) = json.loads(shown.stdout)["usage"]
    return row["device_seconds"] * 1e9


def test_a_tenant_can_write_its_usage_page_and_socket_alone_and_whatever_it_does_harms_nobody(
    node, granted_to_nobody
):
    good = node.tenant("good", cores=300)
    program = node.launch(good, *backlogged(600))
    wait_until(lambda: node.usage("good").devices[0].launches > 500)
    descriptors = Path(f"/proc/{node.process.pid}/fd")
    before = len(list(descriptors.iterdir()))
    open_to_nobody(node)
    hostile = subprocess.Popen(
        [sys.executable, str(HOSTILE), str(NOBODY), str(node.state), str(SECONDS)],
        env={**environment_for(granted_to_nobody), "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        writable, replaced = (json.loads(hostile.stdout.readline()) for _ in range(2))
        assert writable == [
            "agent.sock", "machines/h200x1", "tenants/bad/handshake", "tenants/bad/usage",
        ]  # fmt: skip
        assert replaced == []
        share = share_of(node, "good", SECONDS * 0.7)
        waits = []
        for number in range(8):
            began = time.monotonic()
            with node.client() as agent:
                agent.grant(request(f"new{number}", cores=10, memory=1 << 20))
                slowest_ns = agent.node().slowest_round.ToNanoseconds()
            waits.append(time.monotonic() - began)
        late = node.launch(good, *backlogged(600))
        wait_until(lambda: late.pid in known(node, "good"))
        line = hostile.stdout.readline()
        assert line, hostile.wait(10)
        done = json.loads(line)
        wait_until(lambda: (node.state / "tenants/bad/usage").stat().st_size <= page_bytes())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(hostile.pid, signal.SIGKILL)
        hostile.communicate()
    for attack in ("truncate", "noise", "many_slots", "grow", "modes", "locks", "connect"):
        assert done.get(attack), done
    assert done["stopped"] == 4
    assert "events" not in done, "only the agent writes events"
    assert 25 < share < 33, done
    assert sorted(waits)[len(waits) // 2] < 0.5, waits
    assert slowest_ns < 10**9
    assert len(list(descriptors.iterdir())) < before + 100
    told = [event["event"] for event in node.events("bad")]
    assert told.count("page-grown") == 1
    assert told.count("handshake-refused") == 1
    assert told.count("damaged") == 1
    assert len(told) < 40

    for one in (program, late):
        one.kill()
        one.wait()
    wait_until(lambda: not node.usage("good").slots)
    spent_ns = node.usage("good").devices[0].spent_ns
    assert metered_ns(node, "good") == spent_ns, "the neighbour's meter is exact"


def test_in_a_cooperative_directory_what_stands_in_a_files_place_hangs_nobody(node):
    """The tenant's user owns the directory here, and may replace our files by anything."""
    ways = {
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to("/dev/zero"),
        "folder": lambda path: path.mkdir(),
        "nothing": lambda _: None,
    }
    for way in ways:
        node.tenant(f"bad-{way}", cores=10)
    for way, make in ways.items():
        directory = node.state / "tenants" / f"bad-{way}"
        for name in ("usage", "handshake", "processes.json", "events.jsonl", "quota", "grant.yaml"):
            with contextlib.suppress(FileNotFoundError):
                (directory / name).unlink()
            make(directory / name)
    began = time.monotonic()
    program = node.launch(node.tenant("good", cores=300), *backlogged(600))
    wait_until(lambda: program.pid in known(node, "good"))
    wait_until(lambda: node.usage("good").devices[0].launches > 100)
    node.kill()
    node.start()
    wait_until(lambda: "adopted" in [event["event"] for event in node.events("good")])
    with node.client() as agent:
        assert "good" in [tenant.name for tenant in agent.tenants()]
        agent.revoke("good", 0)
    assert time.monotonic() - began < 30
