"""`penstock pool acquire` while it waits: what it says, signals, restarts, exit codes."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import threading
import time

import pytest
from tests.pool_cli.support.unkind_pool import (
    grant,
    granted,
    refuse_claim,
    update,
    wait_then_grant,
    waiting,
)


def test_it_says_what_it_waits_for_whenever_that_changes(penstock_pool, pool):
    def change(pool, request, context):
        for place in (2, 2, 1):
            yield waiting("train", request.blocks, place=place)
        yield update(granted("train", request.blocks))

    pool.scripts = [change]
    done = penstock_pool("acquire", "--tflops", "50", "--wait", "5m")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"penstock: application train is waiting, place {place} in the queue: 50 blocks: no 50 "
        "blocks are free: 18 are"
        for place in (2, 1)
    ]
    pool.scripts = [change]
    assert penstock_pool("acquire", "--tflops", "50", "-q").stderr == ""


def test_on_a_terminal_one_line_is_rewritten_and_removed_at_the_end(penstock_pool, pool):
    may_go = threading.Event()
    pool.scripts = [wait_then_grant(may_go)]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        penstock_pool.command("acquire", "--tflops", "50", "--wait", "5m"),
        env=penstock_pool.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    seen = b""
    while seen.count(b"\r\x1b[Kpenstock: ") < 3:
        assert select.select([ours], [], [], 30)[0], seen
        seen += os.read(ours, 4096)
    may_go.set()
    assert process.wait(30) == 0
    seen += os.read(ours, 4096) if select.select([ours], [], [], 1)[0] else b""
    assert seen.endswith(b"\r\x1b[K")
    assert b"\n" not in seen
    os.close(ours)
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_waits_withdraws_the_claim(penstock_pool, pool, number):
    pool.scripts = [wait_then_grant(threading.Event())]
    process = penstock_pool.start("acquire", "--tflops", "50", "--wait", "5m", "--name", "train")
    assert "train is waiting" in process.stderr.readline()
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    pool.wait(lambda: pool.withdrawn == ["train"])
    assert len(pool.called("Acquire")) == 1
    assert process.stdout.read() == ""


def test_a_killed_command_withdraws_its_claim(penstock_pool, pool):
    pool.scripts = [wait_then_grant(threading.Event())]
    process = penstock_pool.start("acquire", "--tflops", "50", "--wait", "5m", "--name", "train")
    process.stderr.readline()
    process.kill()
    pool.wait(lambda: pool.withdrawn == ["train"])


def test_it_goes_on_waiting_when_it_was_stopped_and_continued(penstock_pool, pool):
    may_go = threading.Event()
    pool.scripts = [wait_then_grant(may_go)]
    process = penstock_pool.start(
        "acquire", "--tflops", "50", "--wait", "5m", start_new_session=False
    )
    process.stderr.readline()
    process.send_signal(signal.SIGTSTP)
    time.sleep(0.2)
    process.send_signal(signal.SIGCONT)
    may_go.set()
    assert process.wait(30) == 0


def test_a_restart_of_the_manager_while_it_waits_is_said_and_loses_nothing(penstock_pool, pool):
    pool.scripts = [wait_then_grant(threading.Event()), grant]
    process = penstock_pool.start("acquire", "--tflops", "50", "--wait", "5m", "--name", "train")
    process.stderr.readline()
    pool.stop()
    assert "asking again for the same claim" in process.stderr.readline()
    pool.start()
    assert process.wait(60) == 0
    assert "application train: 50 blocks" in process.stdout.read()
    first, second = pool.called("Acquire")
    assert first == second


def test_no_room_has_an_exit_code_of_its_own(penstock_pool, pool):
    pool.scripts = [refuse_claim("not-enough-left", "no room for 50 blocks", "18 are free", "wait")]
    done = penstock_pool("acquire", "--tflops", "50")
    assert done.returncode == 75
    assert done.stderr == "penstock: no room for 50 blocks: 18 are free; wait\n"
    assert done.stdout == ""


def test_a_claim_that_can_never_run_is_an_error(penstock_pool, pool):
    pool.scripts = [refuse_claim("invalid", "500 blocks", "the pool has 200", "ask for less")]
    assert penstock_pool("acquire", "--tflops", "500").returncode == 2


def test_an_interruption_that_comes_with_the_grant_gives_the_grant_back(penstock_pool, pool):
    is_granted = threading.Event()

    def grant_late(pool, request, context):
        yield waiting("train", request.blocks)
        is_granted.wait(20)
        yield update(granted("train", request.blocks))

    pool.scripts = [grant_late]
    process = penstock_pool.start("acquire", "--tflops", "50", "--wait", "5m")
    process.stderr.readline()
    process.send_signal(signal.SIGSTOP)
    is_granted.set()
    time.sleep(0.3)  # the answer lies in the socket of the stopped process
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    code = process.wait(30)
    assert code in {0, 143}
    assert bool(pool.called("Release")) == (code == 143)
