"""Admission, live resize, policies in use, and what `ps` and `top` show."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from penstock.node.tenants.tenant import Tenant
from penstock_shim.pages import read_quota

from .conftest import wait_until

SLEEP = ["--", "sh", "-c", "echo ready; exec sleep 1000"]


def hold(penstock, name, memory="8Gi", cores="30", *options):
    process = penstock.start(f"--name={name}", *options, *SLEEP, memory=memory, cores=cores)
    assert process.stdout.readline() == "ready\n"
    return process


def limit_of(penstock, name):
    return read_quota(penstock.state / "tenants" / name / "quota").limits.devices[0]


def test_a_request_beyond_what_is_free_is_refused_and_names_the_holders(penstock):
    hold(penstock, "first", "100Gi", "70")
    refused = penstock.run("--", "true", memory="8Gi", cores="40")
    assert refused.returncode == 2
    assert "not enough left for 40 cores (30 free)" in refused.stderr
    assert "first holds 100Gi and 70 cores" in refused.stderr
    refused = penstock.run("--", "true", memory="41Gi", cores="30")
    assert "not enough left for 41Gi memory (40.4Gi free)" in refused.stderr
    assert penstock.run("--", "true", memory="40Gi", cores="30").returncode == 0


def test_a_second_device_is_chosen_when_the_first_is_full(penstock):
    hold(penstock, "first", "8Gi", "70", "--simulate=h200,2")
    hold(penstock, "second", "8Gi", "70", "--simulate=h200,2")
    assert {row["device"]["index"] for row in penstock.ps()} == {0, 1}
    both = penstock.run("--simulate=h200,2", "--device=0,1", "--", "true")
    assert both.returncode == 0


def test_oversubscription_is_admitted_with_a_warning(penstock):
    hold(penstock, "first", "100Gi", "70")
    arguments = ["run", "--simulate=h200", "--memory=100Gi", "--cores=70", "--oversubscribe"]
    result = penstock(*arguments, "--", "true")
    assert result.returncode == 0
    assert "quotas on it are not guaranteed" in result.stderr


def test_racing_commands_are_never_granted_more_than_the_device(penstock):
    arguments = penstock.run_arguments(["--", "sh", "-c", "echo ready; read x"], "1Gi", "30")

    racers = [
        subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            env=penstock.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(6)
    ]
    admitted = [racer for racer in racers if racer.stdout.readline() == "ready\n"]
    assert len(admitted) == 3
    names = penstock.tenants()
    assert names == ["sh", "sh-2", "sh-3"]
    for racer in racers:
        racer.communicate("\n", timeout=30)
    assert sorted(racer.returncode for racer in racers) == [0, 0, 0, 2, 2, 2]
    assert penstock.tenants() == []


def test_a_running_tenant_is_resized_through_its_page_and_its_record(penstock):
    hold(penstock, "t")
    generation = read_quota(penstock.state / "tenants" / "t" / "quota").limits.generation
    result = penstock("quota", "set", "t", "--cores", "40", "--memory", "6Gi", "--mode", "elastic")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("t: memory 6Gi, cores 40 ")
    quota = read_quota(penstock.state / "tenants" / "t" / "quota")
    assert quota.limits.generation > generation
    assert quota.limits.mode == "elastic"
    assert (quota.limits.devices[0].memory_bytes, quota.limits.devices[0].cores_permille) == (
        6 << 30,
        400,
    )
    grant = yaml.safe_load((penstock.state / "tenants" / "t" / "grant.yaml").read_text())
    assert grant["spec"]["devices"][0]["memory"] == "6Gi"
    assert grant["spec"]["devices"][0]["cores"] == "40"
    shown = json.loads(penstock("quota", "show", "t", "-o", "json").stdout)
    assert (shown["mode"], shown["devices"][0]["memory"]) == ("elastic", "6Gi")
    events = (penstock.state / "tenants" / "t" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in events] == ["granted", "resized"]


def test_a_resize_is_admitted_like_a_new_tenant(penstock):
    hold(penstock, "first", "100Gi", "70")
    hold(penstock, "second", "8Gi", "30")
    refused = penstock("quota", "set", "second", "--cores", "40")
    assert refused.returncode == 2
    assert "first holds 100Gi and 70 cores" in refused.stderr
    assert limit_of(penstock, "second").cores_permille == 300
    assert penstock("quota", "set", "first", "--cores", "60").returncode == 0
    assert penstock("quota", "set", "second", "--cores", "40").returncode == 0


def test_a_resize_whose_command_was_killed_half_way_is_finished_by_the_supervisor(penstock):
    hold(penstock, "t")
    file = penstock.state / "tenants" / "t" / "grant.yaml"
    aside = file.with_name("aside")
    aside.write_text(file.read_text().replace("memory: 8Gi", "memory: 6Gi"))
    aside.replace(file)
    wait_until(lambda: limit_of(penstock, "t").memory_bytes == 6 << 30)


def test_every_supervisor_writes_to_its_tenants_page_how_many_share_the_device(penstock):
    hold(penstock, "first")
    hold(penstock, "second")
    wait_until(lambda: limit_of(penstock, "first").sharers == 2)
    wait_until(lambda: limit_of(penstock, "second").sharers == 2)
    penstock.started[1].terminate()
    wait_until(lambda: limit_of(penstock, "first").sharers == 1)


def test_idle_time_is_offered_to_an_elastic_tenant_only_when_it_asks(penstock):
    hold(penstock, "t", "8Gi", "30", "--mode=elastic")
    assert limit_of(penstock, "t").allowance == 300


def test_a_policy_sets_the_limits_and_options_override_them(penstock, tmp_path):
    policy = tmp_path / "p.yaml"
    policy.write_text(
        "apiVersion: penstock.io/v1alpha1\nkind: QuotaPolicy\nmetadata: {name: p}\nspec:\n"
        "  selector: {command: sh}\n  limits: {memory: 4Gi, tflops: 120}\n  mode: elastic\n"
    )
    process = penstock.start(f"--policy={policy}", "--name=t", *SLEEP, memory=None)
    assert process.stdout.readline() == "ready\n"
    limits = read_quota(penstock.state / "tenants" / "t" / "quota").limits
    # 120 of the H200's 989.5 TFLOPS is 12.13 %, rounded up to whole percents.
    assert (limits.mode, limits.devices[0].memory_bytes) == ("elastic", 4 << 30)
    assert limits.devices[0].cores_permille == 130
    told = penstock(
        "run", "--simulate=h200", f"--policy={policy}", "--memory=2Gi", "--mode=strict",
        "--", "sh", "-c", "true",
    )  # fmt: skip
    assert "tflops: 120 of 989.5" in told.stderr
    assert "is 13 cores (rounded up to a whole percent)" in told.stderr
    assert "2Gi and 13 cores" in told.stderr
    assert "strict" in told.stderr
    grant = yaml.safe_load((penstock.state / "tenants" / "t" / "grant.yaml").read_text())
    assert grant["spec"]["policy"] == f"p ({policy}:1)"


@pytest.mark.parametrize("how", ["named", "the node's"])
@pytest.mark.parametrize(
    ("said", "granted"),
    [
        ("measured: deny, grace: 0s", ("deny", 0)),
        ("measured: throttle, grace: 500ms", ("throttle", 500_000_000)),
        ("measured: suspend, grace: 37s", ("suspend", 37 * 10**9)),
        ("measured: terminate, grace: 2h", ("terminate", 7200 * 10**9)),
    ],
)
def test_on_exceed_of_a_policy_reaches_the_tenants_grant(penstock, tmp_path, how, said, granted):
    policies = tmp_path / "policies"
    policies.mkdir()
    policy = policies / "p.yaml"
    policy.write_text(
        "apiVersion: penstock.io/v1alpha1\nkind: QuotaPolicy\nmetadata: {name: p}\n"
        "spec: {selector: {command: sh}, limits: {memory: 4Gi, cores: 20}, "
        f"onExceed: {{{said}}}}}\n"
    )
    options = [f"--policy={policy}"] if how == "named" else []
    process = penstock.start(
        *options, "--name=t", *SLEEP, memory=None, env={"PENSTOCK_POLICIES": str(policies)}
    )
    assert process.stdout.readline() == "ready\n"
    grant = Tenant(penstock.state / "tenants" / "t").grant()
    assert (grant.measured, grant.grace_ns) == granted


def test_without_a_policy_excess_ends_a_tenant_after_ten_seconds(penstock):
    hold(penstock, "t")
    grant = Tenant(penstock.state / "tenants" / "t").grant()
    assert (grant.measured, grant.grace_ns) == ("terminate", 10 * 10**9)


def test_ps_shows_every_tenant_in_each_format(penstock):
    assert penstock("ps").stdout == "no tenants\n"
    assert penstock.ps() == []
    hold(penstock, "t", "8Gi", "12.5")
    table = penstock("ps", env={"NO_COLOR": "1"}).stdout
    assert "H200 (sim)" in table
    for word in ("t", "strict", "8Gi", "12.5"):
        assert f" {word} " in table
    assert "\x1b" not in table
    (row,) = penstock.ps()
    assert row == yaml.safe_load(penstock("ps", "-o", "yaml").stdout)[0]
    assert row["memory"] == {
        "quota_bytes": 8 << 30,
        "used_bytes": 0,
        "peak_bytes": 0,
        "device_measured_bytes": 0,
    }
    assert (row["cores"]["quota_percent"], row["refusals"], row["processes"]) == (12.5, 0, [])
    assert len(row["members"]) == 1


def test_top_prints_one_snapshot_or_a_line_an_interval(penstock):
    hold(penstock, "t")
    assert json.loads(penstock("top", "-o", "json").stdout)[0]["tenant"] == "t"
    assert "\nt " in penstock("top").stdout
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        subprocess.run(
            [*penstock_command(), "top", "-o", "json", "--watch", "--interval", "0.1"],
            env=penstock.environment,
            capture_output=True,
            timeout=5,
            check=False,
        )
    lines = caught.value.stdout.decode().splitlines()
    assert len(lines) > 3
    assert json.loads(lines[0])[0]["tenant"] == "t"


def penstock_command():

    return [sys.executable, "-m", "penstock"]


def test_version_and_help_name_the_commands(penstock):
    assert penstock("--version").stdout.startswith("penstock 0.")
    help_text = penstock("--help").stdout
    for command in ("run", "simulate", "quota", "ps", "top", "policy", "bench", "demo"):
        assert f"\n  {command} " in help_text


def test_a_full_disk_leaves_the_old_quota_and_says_which_file(penstock):
    hold(penstock, "t")
    directory = penstock.state / "tenants" / "t"
    before = (directory / "grant.yaml").read_text()
    # No file may grow: what a full disk does to one that is written anew.
    script = f'ulimit -f 0; exec "{sys.executable}" -m penstock quota set t --memory 6Gi'
    result = subprocess.run(
        ["sh", "-c", script],
        env=penstock.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert f"stays in force: {directory}/grant.yaml cannot be written" in result.stderr
    assert (directory / "grant.yaml").read_text() == before
    assert read_quota(directory / "quota").limits.devices[0].memory_bytes == 8 << 30
    assert [one.name for one in directory.iterdir() if one.name.startswith(".grant")] == []


def test_the_nodes_policy_applies_to_a_command_that_names_neither_policy_nor_quota(
    penstock, tmp_path
):
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "node.yaml").write_text(
        "apiVersion: penstock.io/v1alpha1\nkind: QuotaPolicy\nmetadata: {name: small}\n"
        "spec: {selector: {command: sh}, limits: {memory: 2Gi, cores: 15}}\n"
    )
    node = {"PENSTOCK_POLICIES": str(policies)}
    arguments = ["run", "--simulate=h200"]
    done = penstock(*arguments, "--", "sh", "-c", "exit 4", env=node)
    assert done.returncode == 4, done.stderr
    assert "2Gi and 15 cores" in done.stderr
    said = penstock(*arguments, "--cores=20", "--", "sh", "-c", ":", env=node).stderr
    assert "2Gi and 20 cores" in said
    other = penstock(*arguments, "--", "true", env=node)
    assert (other.returncode, "no policy is given" in other.stderr) == (2, True)
