"""What is written down about a tenant: the grant, whole or not at all; events, bounded."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import PenstockError
from penstock.model.quantity import MOST_GRACE_NS
from penstock.node.admission.checks import check_grace
from penstock.node.tenants import tenant_events as events
from penstock.node.tenants.grant import DeviceGrant, Grant, read_grant, write_grant
from penstock.node.tenants.state import State
from penstock.node.tenants.tenant import collect
from penstock.node.tenants.tenant_events import read_events, record_event
from penstock.node.tenants.tenant_processes import environments

GRANT = Grant(
    tenant="t",
    mode="elastic",
    devices=(DeviceGrant("GPU-1", 0, "NVIDIA H200", 8 << 30, 125, 141 << 30, 0),),
    command=("python", "-c", "print('ä: #')"),
    user="somebody",
    created="2026-01-01T00:00:00+00:00",
    policy="p (p.yaml:1)",
)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
GRACES = st.sampled_from([0, 1, 999, 400_000, 10**9 + 1, MOST_GRACE_NS])


@given(
    st.builds(
        replace,
        st.just(GRANT.devices[0]),
        memory_bytes=st.integers(512, 2**50),
        cores_permille=st.integers(1, 1000),
        context_bytes=st.integers(0, 2**40),
        name=TEXT,
    ),
    st.builds(
        replace,
        st.just(GRANT),
        mode=st.sampled_from(["strict", "elastic"]),
        command=st.lists(TEXT, max_size=4).map(tuple),
        user=TEXT,
        policy=st.none() | TEXT,
        machine=st.none() | TEXT,
        uid=st.none() | st.integers(0, 2**32 - 2),
        lifetime=st.sampled_from(["command", "processes", "until-revoked"]),
        measured=st.sampled_from(["deny", "throttle", "suspend", "terminate"]),
        grace_ns=GRACES | st.integers(0, MOST_GRACE_NS),
        labels=st.dictionaries(TEXT, TEXT, max_size=4),
        request_id=TEXT,
        oversubscribed=st.booleans(),
        allow_unknown=st.booleans(),
        record=st.booleans(),
        suspended=st.booleans(),
        suspended_by=TEXT,
    ),
)
def test_every_grant_that_admission_allows_is_read_as_it_was_written(
    tmp_path_factory, share, grant
):
    check_grace(grant.grace_ns)
    directory = tmp_path_factory.mktemp("tenant")
    grant = replace(grant, devices=(share,))
    write_grant(directory, grant)
    assert read_grant(directory) == grant
    assert [file.name for file in directory.iterdir()] == ["grant.yaml"]


@pytest.mark.parametrize("grace_ns", [-1, MOST_GRACE_NS + 1, (1 << 62) * 10**9])
def test_a_grace_that_nobody_waits_is_refused(grace_ns):
    with pytest.raises(PenstockError, match="0s to 24h"):
        check_grace(grace_ns)


def test_a_tenant_without_processes_whose_grant_is_damaged_is_not_deleted(tmp_path):
    state = State.open(tmp_path / "state")
    for name in ("t", "u"):
        (state.tenants / name).mkdir()
        write_grant(state.tenants / name, replace(GRANT, tenant=name))
    (state.tenants / "t" / "grant.yaml").write_text("grace: 0ms")
    (state.tenants / "empty").mkdir()
    assert [tenant.name for tenant in collect(state)] == ["t"]
    assert (state.tenants / "t").is_dir()


def test_a_reader_never_sees_half_a_grant(tmp_path):
    write_grant(tmp_path, GRANT)
    stop = threading.Event()

    def write():
        for number in range(300):
            write_grant(tmp_path, replace(GRANT, command=("x" * number,)))
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not stop.is_set():
        assert read_grant(tmp_path).tenant == "t"
    writer.join()


@pytest.mark.parametrize("content", [b"", b"a: [", b"\xff", b"apiVersion: x\nkind: Grant\n", b"[]"])
def test_a_grant_that_cannot_be_used_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "grant.yaml").write_bytes(content)
    with pytest.raises(PenstockError, match=r"grant\.yaml cannot be used"):
        read_grant(tmp_path)


def test_events_are_kept_in_order_and_within_their_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "MAX_BYTES", 2000)
    for number in range(200):
        record_event(tmp_path, "deny", number=number)
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 2200
    numbers = [event["number"] for event in read_events(tmp_path)]
    assert numbers == list(range(200 - len(numbers), 200))
    assert len(numbers) > 20


def test_an_event_that_cannot_be_written_is_lost_and_nothing_else(tmp_path):
    record_event(tmp_path / "missing", "deny")
    assert list(tmp_path.iterdir()) == []


def test_processes_are_found_by_the_environment_they_were_started_with(tmp_path):
    read_end, write_end = os.pipe()
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", "read x"],
        {"PENSTOCK_TENANT_DIR": str(tmp_path), "XPENSTOCK_TENANT_DIR": "other"},
        file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0)],
    )
    try:
        assert environments("PENSTOCK_TENANT_DIR")[pid] == {"PENSTOCK_TENANT_DIR": str(tmp_path)}
        assert pid not in environments("PENSTOCK_SIM_MACHINE")
    finally:
        os.close(write_end)
        os.close(read_end)
        os.waitpid(pid, 0)
    assert pid not in environments("PENSTOCK_TENANT_DIR")
