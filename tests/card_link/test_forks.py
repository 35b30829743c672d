"""A forked child of the program, such as a DataLoader's worker, does not disturb its cards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
from tests.card_link.support.cards import PATH, PROJECT, ended, link_to, over_tls, spawned, start
from tests.card_link.support.worker import COUNT, ECHO, SLEEP

from penstock.card.link import EXIT_FRONT_END_GONE, CardError, issue


def in_child(act) -> None:
    """Runs `act` in a forked child, which then ends as a program does; fails if it does not end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:  # noqa: BLE001 - shown to whoever reads the test's output
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline_s = time.monotonic() + 20
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        if time.monotonic() > deadline_s:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hung")
        time.sleep(0.01)


def refuses(call) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - pytest's own context is the parent's
        said = str(error)
    else:
        said = "nothing"
    assert "cannot be used in a forked child of the program" in said, said
    assert "let DataLoader workers yield CPU tensors" in said


def memory_files() -> set[int]:
    """The inodes of this process's memfds."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "memfd" in str(one.readlink()):
                found.add(one.stat().st_ino)
    return found


def test_each_use_in_a_child_is_an_error_and_the_parent_goes_on():
    before = memory_files()  # links of other tests may end just now
    with spawned() as card:
        assert memory_files() > before
        link = card.link
        waiting = link.request(SLEEP, b"0.5")

        def act():
            refuses(lambda: link.post(COUNT))
            refuses(lambda: link.request(ECHO))
            refuses(waiting.result)
            refuses(link.wait_for_room)
            refuses(lambda: link.wait_sent(1))
            assert not link.is_alive
            assert memory_files() <= before
            link.close()
            link.abort()
            assert card.close() == 0

        in_child(act)
        assert waiting.result() == b""
        assert link.request(ECHO, b"on").result() == b"on"


def test_links_that_have_ended_before_do_not_keep_a_child_from_failing_the_others():
    """Their descriptors are closed, and other files have the numbers by now."""
    with spawned() as former:
        pass
    for thread in former.link._threads:
        thread.join(5)
    mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    with spawned() as card:

        def act():
            refuses(lambda: card.link.post(COUNT))
            for descriptor in mine:
                os.fstat(descriptor)

        in_child(act)
        for descriptor in mine:
            os.close(descriptor)


def test_a_child_may_be_forked_while_threads_use_the_card():
    with spawned() as card:
        stop = threading.Event()
        wrong = []

        def use() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                card.link.post(COUNT)
                if card.link.request(ECHO, b"%d" % number).result() != b"%d" % number:
                    wrong.append(number)

        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            in_child(lambda: refuses(lambda: card.link.post(COUNT)))
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_child_may_open_cards_of_its_own():
    with spawned() as card:

        def act():
            with spawned("card of the child") as own:
                assert own.link.request(ECHO, b"mine").result() == b"mine"
                os.kill(own.pid, 9)
                with pytest.raises(CardError, match="killed by signal 9"):
                    own.link.request(ECHO).result()

        in_child(act)
        assert card.link.request(ECHO, b"on").result() == b"on"


KILLED = """
import os, signal, sys, time
from pathlib import Path
from tests.card_link.support.cards import link_to
from tests.card_link.support.worker import ECHO
from penstock.card.link import UnixEndpoint
link = link_to(UnixEndpoint(Path(sys.argv[1])))
link.request(ECHO).result()
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_outlives_the_program_does_not_keep_its_cards(tmp_path):
    path = tmp_path / "private" / "card"
    path.parent.mkdir(0o700)
    with ended(start("--unix", path)) as worker:
        program = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], cwd=PROJECT, env={**os.environ, **PATH},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with ended(program):
            child = int(program.stdout.readline())
            try:
                assert worker.wait(10) == EXIT_FRONT_END_GONE
            finally:
                os.kill(child, signal.SIGKILL)


def test_a_child_closes_nothing_of_a_tls_connection(tmp_path):
    made = issue.issue(["penstock:card:1", "penstock:front-end"])
    with over_tls(tmp_path, tuple(made.values())) as (endpoint, _):
        link = link_to(endpoint)
        in_child(lambda: refuses(lambda: link.post(COUNT)))
        assert link.request(ECHO, b"on").result() == b"on"
        link.abort()


FORKING = """
import os, sys
from tests.card_link.support.cards import spawned
from tests.card_link.support.worker import COUNT, ECHO
with spawned() as card:
    child = os.fork()
    if child == 0:
        sys.exit(0)  # runs all that a program does at its end
    assert os.waitpid(child, 0)[1] == 0
    assert card.link.request(ECHO, b"on").result() == b"on"
    print("went on")
"""


def test_a_child_that_ends_as_a_program_does_ends_no_card():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKING], cwd=PROJECT, env={**os.environ, **PATH},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("went on\n", "", 0)
