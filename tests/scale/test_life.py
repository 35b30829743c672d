"""Replicas and scalers that die, are ended, or do not fit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from .conftest import alive, wait_until


def said(bench, words):
    return lambda: any(words in line for line in bench.said)


def test_a_killed_scaler_leaves_its_replicas_and_the_next_takes_them_over(bench):
    bench.policy(least=3)
    scaler = bench.scale()
    before = bench.wait_for(3)
    scaler.kill()
    scaler.wait()
    (left,) = json.loads(bench("scale", "status", "-o", "json").stdout)
    assert left["scaler_pid"] is None
    assert {tuple(one["pids"]) for one in left["replicas"]} == {(pid,) for pid in before.values()}
    again = bench.scale()
    wait_until(said(bench, "adopts 3 running replicas"))
    wait_until(lambda: bench("scale", "status", "-o", "json").stdout.count(f": {again.pid},"))
    assert bench.running() == before
    os.kill(before[2], signal.SIGKILL)  # and it keeps them as its own
    wait_until(lambda: bench.running().get(2, before[2]) != before[2], "a new replica 2")
    again.send_signal(signal.SIGTERM)
    assert again.wait(30) == 0
    assert not bench.running()
    assert not bench.tenants()


def test_a_scaler_killed_again_and_again_starts_no_replica_twice(bench):
    bench.policy(least=3)
    for pause_s in (0.3, 0.45, 0.6, 0.9, 1.2):
        scaler = bench.scale()
        time.sleep(pause_s)
        scaler.kill()
        scaler.wait()
    bench.scale()
    bench.wait_for(3)
    starts = [number for number, _, word in bench.log if word == "start"]
    assert sorted(starts) == [1, 2, 3]


def test_a_replica_that_dies_is_started_again_ever_later_and_others_run_on(bench):
    bench.policy(least=2)
    bench.scale()
    before = bench.wait_for(2)
    bench.orders(die=[2])
    wait_until(lambda: sum(word == "die" for _, _, word in bench.log) >= 3, "three deaths")
    wait_until(said(bench, "web-2 ended with exit code 7; started again in 4 s"))
    assert said(bench, "web-2 ended with exit code 7; started again in 1 s")()
    assert said(bench, "web-2 ended with exit code 7; started again in 2 s")()
    assert bench.running()[1] == before[1]


def test_a_replica_whose_supervisor_is_killed_runs_on(bench):
    bench.policy(least=1)
    scaler = bench.scale()
    before = bench.wait_for(1)
    keeper = int(json.loads((bench.state / "scale/web/replica-1.json").read_text())["pid"])
    os.kill(keeper, signal.SIGKILL)
    time.sleep(1.5)  # three rounds
    assert bench.running() == before
    scaler.send_signal(signal.SIGTERM)
    assert scaler.wait(30) == 0
    assert (1, before[1], "term") in bench.log
    assert not bench.tenants()


def test_a_replica_that_does_not_fit_is_reported_and_started_once_it_fits(bench):
    bench.policy(least=5, most=6, cores=30)
    other = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "-q", "--simulate=h200", "--memory=8Gi",
         "--cores=30", "--name=other", "--", "sleep", "1000"],
        env=bench.environment,
    )  # fmt: skip
    try:
        wait_until(lambda: bench.tenants() == {"other"})
        scaler = bench.scale()
        wait_until(said(bench, "wants 5, 2 fit: "))
        assert said(bench, "not enough left for 30 cores (10 free)")()
        wait_until(lambda: len(bench.running()) == 2)  # whichever asked first
    finally:
        other.terminate()
        other.wait()
    wait_until(lambda: len(bench.running()) == 3, "a third replica")
    wait_until(said(bench, "wants 5, 3 fit: "))
    assert scaler.poll() is None


def test_replicas_are_ended_by_term_and_killed_after_the_grace(bench):
    bench.policy(least=3)
    bench.orders(stubborn=True)
    scaler = bench.scale("--grace=1s")
    before = bench.wait_for(3)
    began = time.monotonic()
    scaler.send_signal(signal.SIGTERM)
    assert scaler.wait(30) == 0
    assert time.monotonic() - began >= 1
    assert sorted(number for number, _, word in bench.log if word == "term") == [1, 2, 3]
    assert not any(alive(pid) for pid in before.values())
    assert not bench.tenants()


def test_a_second_interrupt_ends_replicas_at_once(bench):
    bench.policy(least=2)
    bench.orders(stubborn=True)
    scaler = bench.scale("--grace=1h")
    before = bench.wait_for(2)
    scaler.send_signal(signal.SIGTERM)
    wait_until(lambda: sum(word == "term" for _, _, word in bench.log) == 2)
    assert scaler.poll() is None
    scaler.send_signal(signal.SIGTERM)
    assert scaler.wait(30) == 0
    assert not any(alive(pid) for pid in before.values())


def test_detached_replicas_run_on_until_they_are_stopped(bench):
    bench.policy(least=2)
    scaler = bench.scale("--detach-replicas")
    before = bench.wait_for(2)
    scaler.send_signal(signal.SIGTERM)
    assert scaler.wait(30) == 0
    assert bench.running() == before
    assert "no scaler; replicas keep running" in bench("scale", "status").stdout
    stopped = bench("scale", "stop", "web")
    assert (stopped.returncode, "ended 2 replicas" in stopped.stderr) == (0, True)
    assert not bench.running()
    assert bench("scale", "status").stdout == "no replicas\n"


def test_a_set_has_one_scaler_and_one_command(bench):
    bench.policy()
    scaler = bench.scale()
    bench.wait_for(1)
    arguments = ["scale", str(bench.policy()), "--simulate=h200", "--"]
    second = bench(*arguments, *bench.command())
    assert second.returncode == 2
    assert f"'web' already has a scaler: pid {scaler.pid}" in second.stderr
    assert "already has a scaler" in bench("scale", "stop", "web").stderr
    scaler.kill()
    scaler.wait()
    other = bench(*arguments, "sleep", "5")
    assert other.returncode == 2
    assert "'web' runs another command" in other.stderr
    assert len(bench.running()) == 1


def test_each_replica_is_a_tenant_under_the_policys_limits(bench):
    bench.policy(least=2)
    bench.scale()
    bench.wait_for(2)
    rows = json.loads(bench("ps", "-o", "json").stdout)
    assert [row["tenant"] for row in rows] == ["web-1", "web-2"]
    assert {row["memory"]["quota_bytes"] for row in rows} == {8 << 30}
    assert {row["cores"]["quota_percent"] for row in rows} == {10.0}


def test_a_command_that_cannot_start_is_reported_and_tried_again(bench):
    bench.policy()
    scaler = bench.scale(command=["/no/such/command"])
    wait_until(said(bench, "web-1 cannot run '/no/such/command'"))
    wait_until(said(bench, "started again in 2 s"))
    assert scaler.poll() is None


@pytest.mark.parametrize(
    ("metrics", "options", "words"),
    [
        ("memory: {up: 80, down: 40}", [], "add --memory-request 2Gi"),
        ("qps: {up: 80, down: 40}", [], "add --qps-url URL"),
        ("qps: {up: 80, down: 40}", ["--qps-url=http://127.0.0.1/"], "--qps-metric"),
        ("qps: {up: 8, down: 4}", ["--qps-url=ftp://a", "--qps-metric=m"], "not http"),
        ("qps: {up: 8, down: 4}", ["--qps-url=http://a", "--qps-metric=m{}"], "valid metric name"),
        ("cpu: {up: 80, down: 40}", ["--name=a/b"], "is not usable"),
        ("cpu: {up: 80, down: 40}", ["--grace=soon"], "is not a time"),
    ],
)
def test_options_that_cannot_work_are_refused_with_what_to_do(bench, metrics, options, words):
    policy = str(bench.policy(metrics=metrics))
    result = bench("scale", policy, "--simulate=h200", *options, "--", "sleep", "1")
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_policy_without_scale_is_refused(bench):
    policy = bench.policy()
    policy.write_text(policy.read_text().split("  scale:")[0])
    result = bench("scale", str(policy), "--simulate=h200", "--", "true")
    assert (result.returncode, "does not scale" in result.stderr) == (2, True)


def test_a_dry_run_says_how_many_fit_and_starts_nothing(bench):
    policy = bench.policy(least=1, most=9, cores=30)
    result = bench("scale", str(policy), "--simulate=h200", "--dry-run", "--", *bench.command())
    assert result.returncode == 0
    assert "web: 1 to 9 replicas of" in result.stdout
    assert "3 more fit now; then simulated device 0" in result.stdout
    assert not bench.log
    assert not (bench.state / "scale").exists()
