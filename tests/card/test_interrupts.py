"""Ctrl-C: a program that waits goes on afterwards; one in the middle of a call loses its cards."""

import os
import signal
import threading

import pytest
import torch
from tests.card.support.sessions import session_of

from penstock.card.link import CardError


def test_ctrl_c_while_the_program_waits_leaves_the_cards_usable():
    with session_of("cpu=1,cpu=1"):
        given = torch.ones(700, 700, device="penstock")
        torch.penstock.synchronize()
        for _ in range(200):  # some seconds of work
            given @ given
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            torch.penstock.synchronize()
        assert (given + 1).sum().item() == 2 * 700 * 700


def test_ctrl_c_between_two_cards_ends_both_instead_of_giving_other_data(monkeypatch):
    with session_of("cpu=1,cpu=1") as session:
        given = torch.ones(4, device="penstock")
        torch.penstock.synchronize()

        def interrupted(*_, **__):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(session.stream.links[1], "post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            [given + 1 for _ in range(1000)]
        for use in (lambda: given + 1, given.tolist, torch.penstock.synchronize):
            with pytest.raises(CardError, match="interrupted in the middle of an operation"):
                use()
