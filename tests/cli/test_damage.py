"""Damaged tenants and outputs that cannot be written are reported and stop nothing else."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from penstock.bench.launch import _row
from penstock.cli.render.table import tenant_table
from penstock.cli.request import policy_of
from penstock.node.supervision.tenant_report import Row

from .conftest import hold

PYTHON = sys.executable
ROW = Row(
    tenant="inference",
    user="somebody",
    command=("python",),
    mode="strict",
    device_index=0,
    device_uuid="GPU-1",
    device_name="NVIDIA H200",
    simulated=True,
    memory_used_bytes=1 << 30,
    memory_peak_bytes=1 << 30,
    memory_quota_bytes=8 << 30,
    cores_used_permille=125,
    cores_quota_permille=300,
    allowance_permille=300,
    refusals=0,
    waits=0,
    processes=((1, "python"),),
    members=(1,),
    device_memory_bytes=1 << 30,
    device_cores_permille=125,
    supervised=True,
)


@pytest.fixture
def damaged(penstock):
    """A living tenant whose grant is random bytes; its directory."""
    directory = hold(penstock)
    (directory / "grant.yaml").write_bytes(bytes(range(256)) * 80)
    return directory


def test_a_tenant_with_a_damaged_grant_is_listed_with_its_processes(penstock, damaged):
    (row,) = penstock.ps()
    assert row["tenant"] == "t"
    assert str(damaged / "grant.yaml") in row["problem"]
    assert row["members"]
    assert row["memory"]["quota_bytes"] is None
    table = penstock("ps")
    assert table.returncode == 0
    assert "no tenants" not in table.stdout
    assert "grant.yaml cannot be used" in table.stdout


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "it does not contain a Grant of penstock.io/v1alpha1"),
        ("{apiVersion: penstock.io/v1alpha1, kind: Grant}", "'metadata' is missing"),
    ],
)
def test_a_grant_with_unexpected_content_is_explained_without_python_terms(penstock, content, why):
    (hold(penstock) / "grant.yaml").write_text(content)
    (row,) = penstock.ps()
    advice = "repair the file, or end the tenant's processes"
    assert f"grant.yaml cannot be used: {why}; {advice}" in row["problem"]


def test_quota_set_on_a_damaged_page_gives_one_advice(penstock):
    os.truncate(hold(penstock) / "quota", 100)
    result = penstock("quota", "set", "t", "--memory", "1Gi")
    assert result.returncode == 2
    assert "quota is shorter than the page it should hold; end" in result.stderr
    assert result.stderr.count("nothing was changed") == 1


def test_a_tenant_without_a_grant_is_listed(penstock, damaged):
    (damaged / "grant.yaml").unlink()
    (row,) = penstock.ps()
    assert "no grant in" in row["problem"]


def test_admission_names_the_processes_that_a_damaged_grant_belongs_to(penstock, damaged):
    members = penstock.ps()[0]["members"]
    result = penstock.run("--name=other", "--", "true")
    assert result.returncode == 2
    assert str(damaged / "grant.yaml") in result.stderr
    assert f"end its processes (pid {', '.join(map(str, members))})" in result.stderr


def start_with(penstock, redirection, *arguments):
    """Runs `penstock` with its output redirected by a shell; the exit code and other output."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", PYTHON, "-m", "penstock", *arguments],
        env=penstock.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_banner_that_cannot_be_written_does_not_stop_the_command(penstock, tmp_path, redirection):
    limits = ["--simulate=h200", "--memory=8Gi", "--cores=30"]
    command = ["sh", "-c", f"touch {tmp_path}/ran; exit 7"]
    result = start_with(penstock, redirection, "run", *limits, "--", *command)
    assert result.returncode == 7
    assert (tmp_path / "ran").exists()
    assert penstock.tenants() == []


@pytest.mark.parametrize("arguments", [["ps"], ["policy", "schema"]])
def test_output_on_a_full_disk_is_one_message(penstock, arguments):
    result = start_with(penstock, ">/dev/full", *arguments)
    assert result.returncode == 2
    assert "No space left on device; free up disk space" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_error_that_cannot_be_written_keeps_its_exit_code(penstock):
    arguments = ["run", "--memory=0", "--cores=1", "--", "true"]
    assert start_with(penstock, "2>/dev/full", *arguments).returncode == 2


def test_a_reader_that_goes_away_is_no_error(penstock):
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = subprocess.run(
        [PYTHON, "-m", "penstock", "policy", "schema"],
        env=penstock.environment,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert result.stderr == ""
    assert result.returncode != 0


def test_a_relative_state_directory_below_a_removed_one_is_one_message(penstock, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone}; rmdir {gone}; exec "$@"'
    result = subprocess.run(
        ["sh", "-c", script, "sh", PYTHON, "-m", "penstock", "ps", "--state-dir=here"],
        env=penstock.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "cannot find the state directory here" in result.stderr


@pytest.mark.parametrize("interval", ["inf", "nan", "1e300"])
def test_an_invalid_interval_is_refused(penstock, interval):
    result = penstock("top", "-o", "json", "--watch", f"--interval={interval}")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_tenants_are_listed_from_a_read_only_disk(penstock):
    hold(penstock)
    script = f'mount --bind -o ro {penstock.state} {penstock.state} && "$@"'
    listing = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", PYTHON, "-m", "penstock", "ps", "-o", "json"],
        env=penstock.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare failed" in listing.stderr or "mount" in listing.stderr:
        pytest.skip(f"no mount namespaces here: {listing.stderr.strip()}")
    assert listing.returncode == 0, listing.stderr
    (found,) = json.loads(listing.stdout)
    assert found["tenant"] == "t"
    assert found["supervised"]


def test_a_command_without_a_name_is_refused(penstock):
    result = penstock.run("--", "")
    assert result.returncode == 2
    assert "the command's name is empty" in result.stderr
    assert penstock.tenants() == []


@pytest.mark.parametrize("kind", ["fifo", "device", "directory"])
def test_a_policy_that_is_no_regular_file_is_refused_at_once(penstock, tmp_path, kind):
    file = tmp_path / "policy.yaml"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    result = penstock("policy", "check", str(file))
    assert result.returncode == 2
    assert str(file) in result.stderr
    assert "not a regular file" in result.stderr or "Is a directory" in result.stderr


def test_a_policy_applies_to_a_user_without_a_name(tmp_path, monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # as in a container: no passwd entry
    file = tmp_path / "p.yaml"
    file.write_text(
        "apiVersion: penstock.io/v1alpha1\nkind: QuotaPolicy\nmetadata: {name: p}\n"
        "spec: {selector: {user: '54321'}, limits: {memory: 8Gi, cores: 30}}\n"
    )
    assert policy_of(file, "true").name == "p"


def row(**fields):
    """A row as of a healthy tenant, with `fields` changed."""
    return replace(ROW, **fields)


def drawn(rows, width):
    screen = Console(width=width, file=io.StringIO())
    screen.print(tenant_table(rows, width=width))
    return screen.file.getvalue()


def test_brackets_in_names_and_problems_are_shown_as_they_are():
    text = drawn(
        [row(tenant="[/red]", device_name="NVIDIA [/red]", problem="bad [/red] page")], 160
    )
    assert "0 [/red] (sim)" in text
    assert "[/red]: bad [/red] page" in text


def test_a_problem_stands_below_the_table():
    table, _, below = drawn([row(problem="x" * 70), row(tenant="b")], 80).partition("b ")
    assert "xxx" not in table
    assert "x" * 70 in below


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 160])
def test_the_tenants_name_is_readable_at_any_width(width):
    text = drawn([row(), row(tenant="a-tenant-of-a-very-long-name")], width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "inference" in text
    assert ("12.5 / 30" in text) == (width >= 40)
    assert ("1Gi / 8Gi" in text) == (width >= 60)
    assert ("DENIED" in text) == (width >= 80)
    assert ("strict" in text) == (width >= 100)


def test_measured_times_are_rounded_to_a_tenth_of_a_nanosecond():
    def rounds(*figures):
        return [{"launch": {"median_ns": one, "mean_ns": one}} for one in figures]

    found = _row("launch", "gated", rounds(1000.1, 1000.1), rounds(1145.9, 1146.3), calls=100)
    assert (found.added_median_ns, found.added_mean_ns) == (146.0, 146.0)
    assert (found.added_low_ns, found.native_median_ns) == (145.7, 1000.1)
