"""`penstock events`: what is on record, in words, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.node.tenants import tombstones as ended
from penstock.node.tenants.tenant_events import record_event


def events(node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "events", *arguments, "--state-dir",
         str(node.state.directory)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def guest(node):
    guest = node.tenant("t")
    record_event(
        guest.directory, "terminate", reason="device 0: too much", kind="memory",
        processes=[{"pid": 12, "command": "train \x1b[2J now"}],
    )  # fmt: skip
    return guest


def test_a_line_says_when_what_why_and_who(node, guest):
    done = events(node, "t")
    heading, granted, line = done.stdout.splitlines()
    assert heading.split() == ["TIME", "EVENT", "REASON"]
    assert "granted" in granted
    assert "terminate" in line
    assert "device 0: too much [pid 12 (train \N{REPLACEMENT CHARACTER}[2J now)]" in line


def test_programs_get_all_of_it(node, guest):
    found = json.loads(events(node, "t", "-o", "json").stdout)
    assert [one["event"] for one in found] == ["granted", "terminate"]
    assert found[1]["processes"] == [{"pid": 12, "command": "train \x1b[2J now"}]


def test_the_events_of_tenants_that_have_ended_are_kept_for_a_while(node, guest, monkeypatch):
    monkeypatch.setattr(ended, "MOST_FILES", 3)
    plain = node.tenant("plain")
    for one in (guest, plain):
        one.subject.tenant.remove()
    found = json.loads(events(node, "t", "-o", "json").stdout)
    assert [one["event"] for one in found] == ["granted", "terminate"]
    assert "terminate" in events(node, "t", "--follow").stdout
    for name in ("plain", "other"):  # of one nothing is to be told
        done = events(node, name)
        assert done.returncode == 2
        assert f"no tenant '{name}'" in done.stderr
        assert "no events are kept under that name" in done.stderr
    state = node.state.directory
    for number in range(4):
        again = node.tenant("t-1")
        record_event(again.directory, "deny", reason=str(number))
        again.subject.tenant.remove()
    assert ended.read_ended(state, "t") == [], "the oldest makes room"
    assert ended.read_ended(state, "t-1")[-1]["reason"] == "3"
    assert len(list((state / "ended").iterdir())) == 3


def test_one_that_follows_sees_each_event_once_and_ends_with_the_tenant(node, guest):
    follower = subprocess.Popen(
        [sys.executable, "-m", "penstock", "events", "t", "--follow", "-o", "json",
         "--state-dir", str(node.state.directory)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        seen = [json.loads(follower.stdout.readline())["event"] for _ in range(2)]
        for number in range(3):
            record_event(guest.directory, f"more-{number}", reason="x")
        seen += [json.loads(follower.stdout.readline())["event"] for _ in range(3)]
        guest.subject.tenant.remove()
        assert follower.stdout.read() == ""
        assert follower.wait(30) == 0
        assert seen == ["granted", "terminate", "more-0", "more-1", "more-2"]
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()
