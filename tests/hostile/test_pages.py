"""Usage pages, which users may write, cannot fill the file system of all tenants."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

import pytest
from tests.agent.conftest import GIB, Node, request, wait_until
from tests.agent.support.other_user import as_nobody
from tests.agent.support.programs import open_to_nobody

from penstock.model import PenstockError
from penstock.node.tenants.tombstones import read_ended

from .conftest import NOBODY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
GRANT = (
    "agent.grant(Request(command=('x',), memory_bytes=[1 << 30], cores_permille=[100], "
    "name='bad', lifetime='until-revoked'))"
)


@pytest.fixture
def small(tmp_path):
    """A node whose state directory is a file system of 64 MiB, like a small /run."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = "size=64m,nr_inodes=4000,mode=711"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True)
    node = Node(disk / "state")
    node.start()
    open_to_nobody(node)
    yield node
    node.close()
    subprocess.run(["umount", "-l", disk], check=True)


def room(node: Node) -> tuple[int, int]:
    """Free bytes and files."""
    found = os.statvfs(node.state)
    return found.f_bavail * found.f_frsize, found.f_favail


@pytest.mark.parametrize("way", ["length", "blocks", "attributes"])
def test_a_process_that_grows_a_page_again_and_again_is_ended_while_others_get_grants(
    small, hostile, way
):
    """Once, a loop of posix_fallocate kept the file system full for as long as it ran."""
    before = room(small)
    assert as_nobody(small, GRANT) == "done"
    page = small.state / "tenants" / "bad" / "usage"
    program = hostile("page_growth.py", page, way)
    assert program.stdout.readline() == "ready\n"
    began = time.monotonic()
    with small.client() as agent:
        for number in range(20):
            agent.grant(request(f"good{number}", cores=10, memory=GIB))
            agent.revoke(f"good{number}", 0)
        wait_until(lambda: not page.exists())
        assert program.wait(40) == -9
        assert time.monotonic() - began < 40
        assert agent.tenants() == []
        told = [one["event"] for one in read_ended(small.state, "bad")]
        assert told.count("page-grown") == 2
        assert told[-1] == "revoked"
        wait_until(lambda: all(n > b * 0.98 for n, b in zip(room(small), before, strict=True)))
        refused = as_nobody(small, GRANT)
        assert refused.startswith("not-allowed")
        assert "made its usage page grow" in refused


def test_a_page_that_is_held_open_after_its_tenant_takes_no_room_and_ends_its_holder(small):
    """Its path no longer shows that it grows."""
    before = room(small)[0]
    assert as_nobody(small, GRANT) == "done"
    page = small.state / "tenants" / "bad" / "usage"
    holder = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "sleep", "600"]
    with page.open("r+b") as held:
        program = subprocess.Popen(holder, stdin=held)
    with small.client() as agent, contextlib.ExitStack() as ended:
        ended.callback(program.kill)
        agent.revoke("bad", 0)
        wait_until(lambda: room(small)[0] > before - (1 << 20))
        assert program.poll() is None
        assert program.wait(40) == -9
        agent.grant(request("good", memory=GIB))


def test_a_page_that_grows_once_is_cut_and_its_tenant_goes_on(small):
    assert as_nobody(small, GRANT) == "done"
    page = small.state / "tenants" / "bad" / "usage"
    size = page.stat().st_size
    os.truncate(page, 4 * size)
    wait_until(lambda: page.stat().st_size == size)
    time.sleep(1)
    assert [one["event"] for one in small.events("bad")] == ["granted", "page-grown"]
    with small.client() as agent:
        assert not agent.suspend("bad").finding
        with pytest.raises(PenstockError, match="exists"):
            agent.grant(request("bad"))
