"""`penstock events`: what is on record, in words, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.node.events import record_event


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


def test_the_events_of_a_tenant_that_has_ended_are_said_to_be_gone(node, guest):
    done = events(node, "other")
    assert done.returncode == 2
    assert "no tenant 'other'" in done.stderr
    assert "the events of a tenant that has ended are gone with its directory" in done.stderr


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
