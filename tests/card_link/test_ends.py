"""Ends: of the program, of its cards' workers, and of both together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.card_link.support.cards import PATH, PROJECT, on_unix_socket, spawned
from tests.card_link.support.worker import COUNT, ECHO, EXIT, SLEEP

from penstock.card.link import EXIT_DONE, EXIT_FRONT_END_GONE, CardError
from penstock.card.link.spawned import spawn

PROGRAM = """
import os, signal, sys, threading
from tests.card_link.support.cards import MODULE, PATH
from tests.card_link.support.worker import COUNT, ECHO, KINDS, SLEEP, STUCK
from penstock.card.link.spawned import spawn
cards = [spawn(f"card {n}", MODULE, kinds=KINDS, variables=PATH) for n in range(2)]
print(*(card.pid for card in cards), flush=True)
for card in cards:
    card.link.request(ECHO).result()
"""
BUSY = """
for card in cards:
    card.link.post(STUCK)
    card.link.post(COUNT, bytes(100 << 20), waits=False)
    card.link.post(COUNT, bytes(100 << 20), waits=False)
threading.Thread(target=cards[0].link.request(SLEEP, b"60").result, daemon=True).start()
"""


def run(*lines: str, **options) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", "\n".join([PROGRAM, *lines])],
        cwd=PROJECT, env={**os.environ, **PATH}, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    return done, [int(pid) for pid in done.stdout.split()]


def wait_for_end(pid: int, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        try:
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - shortest
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    pytest.fail(f"worker {pid} still runs")


@pytest.mark.parametrize("what", ["idle", "busy"])
def test_a_program_that_ends_with_open_cards_ends_quietly_and_so_do_they(what):
    done, pids = run(BUSY if what == "busy" else "")
    assert (done.stderr, done.returncode) == ("", 0)
    for pid in pids:
        wait_for_end(pid, 5)


def test_a_program_that_ends_by_an_exception_shows_only_that():
    done, pids = run(BUSY, "raise SystemExit('my own error')")
    assert (done.stderr, done.returncode) == ("my own error\n", 1)
    for pid in pids:
        wait_for_end(pid, 5)


def test_workers_end_with_a_program_that_is_killed():
    done, pids = run(BUSY, "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -9
    for pid in pids:
        wait_for_end(pid, 5)


def test_a_worker_may_be_started_by_a_thread_that_ends():
    """The kernel ends a child with the thread that started it, if the child asked for that."""
    done, _ = run(
        "made = []",
        "start = lambda: made.append(spawn('card 3', MODULE, kinds=KINDS, variables=PATH))",
        "thread = threading.Thread(target=start); thread.start(); thread.join()",
        "import time; time.sleep(0.3)",
        "assert made[0].link.request(ECHO, b'on').result() == b'on'",
    )
    assert (done.stderr, done.returncode) == ("", 0)


def test_ctrl_c_does_not_reach_a_worker():
    with spawned() as card:
        os.kill(card.pid, signal.SIGINT)
        assert card.link.request(ECHO, b"on").result() == b"on"


def test_closing_executes_all_frames_first():
    with spawned() as card:
        for _ in range(100):
            card.link.post(COUNT)
        reply = card.link.request(COUNT)
        card.link.close()
        assert reply.result() == b"101"
        with pytest.raises(CardError, match=r"card 1 .* is closed"):
            card.link.post(COUNT)
        card.link.close()
        assert card.close() == EXIT_DONE


def test_a_worker_ends_when_its_program_is_gone(tmp_path):
    with on_unix_socket(tmp_path) as (link, process):
        link.request(ECHO).result()
        link.abort()
        assert process.wait(5) == EXIT_FRONT_END_GONE


def test_a_worker_that_works_ends_soon_after_its_program_is_gone(tmp_path):
    with on_unix_socket(tmp_path) as (link, process):
        waiting = link.request(SLEEP, b"60")
        link.post(COUNT, bytes(100 << 20))
        link.post(COUNT, bytes(100 << 20))
        time.sleep(0.2)
        link.abort()
        with pytest.raises(CardError, match="is closed"):
            waiting.result()
        assert process.wait(6) == EXIT_FRONT_END_GONE


def test_a_worker_that_ends_itself_is_gone():
    with spawned() as card:
        reply = card.link.request(EXIT, b"3")
        with pytest.raises(CardError, match=r"is gone: its process ended \(exit status 3\)"):
            reply.result()


def test_a_program_whose_first_worker_cannot_start_is_told_why():
    code = "from penstock.card.link.spawned import spawn; spawn('card 0', 'no_such', kinds={})"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **PATH}, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert "card 0 cannot be started: the process that starts workers has ended (exit" in last


def test_a_worker_that_cannot_start_says_so():
    with pytest.raises(CardError, match=r"cannot be started: the process that .* ended \(exit"):
        spawn("card 1", "penstock.no_such_module", kinds={})


def test_a_worker_that_ends_in_order_unasked_is_gone(tmp_path):
    with on_unix_socket(tmp_path) as (link, process):
        process.terminate()
        process.wait(5)
        time.sleep(0.1)
        with pytest.raises(CardError, match="is gone: its connection ended"):
            link.request(ECHO).result()
