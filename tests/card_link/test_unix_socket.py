"""Cards on this node: who may connect to a worker's unix socket."""

from __future__ import annotations

import os

import pytest
from tests.card_link.support.cards import AGREEMENT, ended, link_to, start
from tests.card_link.support.worker import ECHO

from penstock.card.link import Agreement, CardError, LinkSettings, UnixEndpoint, listen_unix
from penstock.model import PenstockError

STRANGER = os.getuid() + 54321


def private(folder):
    (folder / "private").mkdir(0o700)
    return folder / "private" / "card"


def test_a_socket_in_a_folder_that_others_may_enter_is_refused(tmp_path):
    for mode in (0o750, 0o701, 0o777):
        path = tmp_path / f"{mode:o}" / "card"
        path.parent.mkdir()
        path.parent.chmod(mode)
        with pytest.raises(PenstockError, match=r"is not private: .*; make it with: install"):
            listen_unix(path)
        assert not path.exists()
    listen_unix(private(tmp_path)).close()


def test_a_path_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(PenstockError, match=r"cannot listen at .*No such file"):
        listen_unix(tmp_path / "nowhere" / "card")


def test_a_worker_of_another_user_is_refused(tmp_path):
    path = private(tmp_path)
    with ended(start("--unix", path)):
        with pytest.raises(CardError, match=f"is a process of user {os.getuid()}"):
            link_to(UnixEndpoint(path, STRANGER))
        link = link_to(UnixEndpoint(path, os.getuid()))
        assert link.request(ECHO, b"on").result() == b"on"
        link.abort()


def test_a_front_end_of_another_user_is_refused(tmp_path):
    path = private(tmp_path)
    with ended(start("--unix", path, "--uid", STRANGER)), pytest.raises(CardError):
        link_to(UnixEndpoint(path))


def test_a_worker_that_does_not_listen_yet_is_waited_for(tmp_path):
    path = private(tmp_path)
    with ended(start("--unix", path, "--start-s", 0.7)):
        link = link_to(UnixEndpoint(path))
        assert link.request(ECHO, b"on").result() == b"on"
        link.abort()


def test_a_worker_that_never_listens_is_given_up_in_time(tmp_path):
    with pytest.raises(CardError, match="card 1 cannot be reached: nobody listens there"):
        link_to(UnixEndpoint(private(tmp_path)), settings=LinkSettings(connect_s=0.3))


def test_a_short_token_is_not_used(tmp_path):
    with pytest.raises(ValueError, match="must have 32 bytes"):
        link_to(UnixEndpoint(private(tmp_path)), Agreement("app", b"short"))
    assert len(Agreement.new("app").token) == len(AGREEMENT.token)
    assert Agreement.new("app").token != Agreement.new("app").token
