"""The nursery: workers are forks of a process that has loaded what they need."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest
from tests.card_link.support.cards import spawned
from tests.card_link.support.worker import ECHO, EXIT

from penstock.card.link import CardError
from penstock.card.link.nursery import Nursery, NurseryEndedError

FEW_PROCESSES = "tests.card_link.support.few_processes"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def answers(card) -> bool:
    return card.link.request(ECHO, b"on").result() == b"on"


def until_lost(card) -> None:
    while True:
        answers(card)


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_lost_worker_is_followed_by_another_of_the_same_nursery(how):
    with spawned() as former:
        nursery = parent(former.pid)
        if how == "killed":
            os.kill(former.pid, signal.SIGKILL)
        else:
            former.link.post(EXIT, b"7")
        with pytest.raises(CardError, match="signal 9" if how == "killed" else "exit status 7"):
            until_lost(former)
    with spawned() as card:
        assert answers(card)
        assert parent(card.pid) == nursery


def test_a_nursery_that_is_killed_ends_its_workers_and_another_takes_its_place():
    with spawned() as former:
        nursery = parent(former.pid)
        os.kill(nursery, signal.SIGKILL)
        with pytest.raises(CardError, match="killed by signal 9"):
            until_lost(former)
    with spawned() as card:
        assert answers(card)
        assert parent(card.pid) != nursery


def test_an_order_that_is_interrupted_ends_the_nursery_instead_of_mixing_up_its_answers():
    nursery = Nursery(FEW_PROCESSES, {**os.environ, "SLOW_S": "5"})

    def interrupt(*_):
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            nursery.start([], 0)
    finally:
        signal.signal(signal.SIGALRM, former)
    with pytest.raises(NurseryEndedError):
        nursery.start([], 0)
    nursery.close()


def test_a_worker_for_which_there_is_no_room_is_an_error_and_the_next_one_starts():
    nursery = Nursery(FEW_PROCESSES, os.environ)
    with Path(os.devnull).open() as nothing:
        with pytest.raises(BlockingIOError):
            nursery.start(["3"], nothing.fileno())
        worker = nursery.start(["3"], nothing.fileno())
    assert select.select([worker.pidfd], [], [], 10)[0]
    os.close(worker.pidfd)
    assert nursery.status(worker.pid) == 3
    nursery.close()
