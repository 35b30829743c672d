"""Shared memory on one node: large bodies arrive unchanged, and neither side can harm the other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.card_link.support.cards import AGREEMENT, ended, on_unix_socket, spawned, start
from tests.card_link.support.peer import as_worker, dialled
from tests.card_link.support.worker import COUNT, ECHO, KEEP, SLEEP, SUM

from penstock.card.link import EXIT_PROTOCOL, SLOT_BYTES, CardError
from penstock.card.link.frame import RELEASED, SHARED, USE_MEMORY, encode
from penstock.card.link.shared_memory import LEAST_BYTES, SLOTS, SlotWriter

SHARES = ("card 1", "--shares-memory")


@pytest.fixture
def link():
    with spawned(*SHARES) as card:
        card.link.request(ECHO).result()  # the worker has told by then that it shares
        yield card.link


def memory_of(link) -> bytes:
    return os.pread(link._slots.descriptor, SLOTS * SLOT_BYTES, 0)


@pytest.mark.parametrize("size", [LEAST_BYTES, SLOT_BYTES])
def test_bodies_of_these_sizes_go_through_memory_and_arrive_unchanged(link, size):
    body = bytes(range(1, 252)) * (size // 251 + 1)
    assert (
        link.request(ECHO, body[: size - 5], memoryview(body)[size - 5 : size]).result()
        == (body[:size])
    )
    assert body[:size] in memory_of(link)


@pytest.mark.parametrize("size", [LEAST_BYTES - 1, SLOT_BYTES + 1])
def test_other_bodies_go_through_the_socket(link, size):
    body = b"\5" * size
    assert link.request(ECHO, body).result() == body
    assert memory_of(link) == bytes(SLOTS * SLOT_BYTES)


def test_bodies_of_all_ways_keep_their_order_and_contents(link):
    sizes = [10, LEAST_BYTES, 5000, SLOT_BYTES, SLOT_BYTES + 9, LEAST_BYTES + 7, 0, LEAST_BYTES]
    wanted = []
    for number in range(60):
        size = sizes[number % len(sizes)]
        link.post(COUNT, b"\1" * sizes[(number * 5) % len(sizes)])
        wanted.append((number % 200 * size, link.request(SUM, bytes([number % 200]) * size)))
    for total, reply in wanted:
        assert int(bytes(reply.result(20))) == total
    assert link.request(COUNT).result() == b"61"


def test_without_memory_on_the_node_all_goes_through_the_socket(monkeypatch):
    def refused(*_: object) -> int:
        raise OSError(errno.ENOSYS, "no memfd here")

    monkeypatch.setattr(os, "memfd_create", refused)
    with spawned(*SHARES) as card:
        body = b"\5" * SLOT_BYTES
        assert card.link.request(ECHO, body).result() == body


def test_a_worker_that_does_not_want_it_gets_none_and_may_keep_bodies():
    with spawned() as card:
        body = b"\5" * SLOT_BYTES
        card.link.request(KEEP, body).result()
        assert card.link.request(ECHO, body).result() == body
        assert memory_of(card.link) == bytes(SLOTS * SLOT_BYTES)


def test_a_handler_that_keeps_a_shared_body_ends_its_worker_instead_of_seeing_other_data(link):
    link.post(KEEP, b"\5" * SLOT_BYTES)
    with pytest.raises(CardError, match=r"is gone: its process ended \(exit status 1\)"):
        link.request(ECHO).result()


def test_a_sender_that_waits_for_a_slot_is_woken_when_the_card_is_killed():
    with spawned(*SHARES) as card:
        card.link.request(ECHO).result()
        card.link.post(SLEEP, b"60")
        for _ in range(SLOTS + 3):
            position = card.link.post(COUNT, b"\5" * SLOT_BYTES)
        assert not card.link.wait_sent(position, 0.3)
        threading.Timer(0.2, os.kill, (card.pid, signal.SIGKILL)).start()
        with pytest.raises(CardError, match="killed by signal 9"):
            card.link.wait_sent(position)
        sender = card.link._threads[0]
        sender.join(5)
        assert not sender.is_alive()


def test_memory_and_descriptors_are_given_back_after_the_link():
    before = descriptors(os.getpid())
    for _ in range(5):
        with spawned(*SHARES) as card:
            card.link.request(SUM, b"\1" * SLOT_BYTES).result()
        for thread in card.link._threads:
            thread.join(5)
    deadline_s = time.monotonic() + 5  # other tests' links may just be ending, too
    while descriptors(os.getpid()) > before and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert descriptors(os.getpid()) <= before


def test_a_worker_that_gives_back_what_it_does_not_have_breaks_the_protocol():
    for body in (b"\0\0\0\0", b"\7", b"\xff" * 9):

        def act(peer, body=body):
            peer.say(USE_MEMORY)
            peer.say(RELEASED, body)
            peer.connection.recv(1)

        link = as_worker(act)
        with pytest.raises(CardError, match="broke the protocol: the worker gives back slot"):
            link.request(ECHO).result(5)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (b"", "names no place"),
        ((SLOTS).to_bytes(4, "little") + b"\1\0\0\0", "which are not there"),
        (b"\0" * 4 + (SLOT_BYTES + 1).to_bytes(4, "little"), "which are not there"),
    ],
    ids=["empty", "slot", "length"],
)
def test_a_frame_that_names_no_place_ends_the_connection(tmp_path, place, why):
    with on_unix_socket(tmp_path, "--shares-memory") as (link, process):
        link._queue.put(encode(1, COUNT, SHARED, 0, [place]))
        assert process.wait(10) == EXIT_PROTOCOL
        with pytest.raises(CardError, match=why):
            link.request(ECHO).result()


def test_a_slot_that_is_in_use_is_not_used_again(tmp_path):
    with on_unix_socket(tmp_path, "--shares-memory") as (link, process):
        link.post(SLEEP, b"1")
        for _ in range(2):
            link._queue.put(encode(1, COUNT, SHARED, 0, [b"\0\0\0\0\1\0\0\0"]))
        assert process.wait(10) == EXIT_PROTOCOL


def test_a_worker_that_does_not_share_refuses_shared_frames(tmp_path):
    with on_unix_socket(tmp_path) as (link, process):
        link._queue.put(encode(1, COUNT, SHARED, 0, [b"\0\0\0\0\1\0\0\0"]))
        assert process.wait(10) == EXIT_PROTOCOL


def hostile_memory(*, seals: int, size: int) -> int:
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    ("seals", "size", "why"),
    [
        (fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL, SLOTS * SLOT_BYTES, "is not sealed"),
        (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL, 4096, "unexpected size"),
    ],
    ids=["shrinks", "small"],
)
def test_memory_that_could_end_the_worker_is_refused(tmp_path, seals, size, why):
    path = tmp_path / "private" / "card"
    path.parent.mkdir(0o700)
    descriptor = hostile_memory(seals=seals, size=size)
    with (
        ended(start("--unix", path, "--shares-memory")) as process,
        dialled(path, AGREEMENT) as peer,
    ):
        peer.greet()
        peer.prove(b"front-end", descriptor)
        assert why in peer.reason()
        assert process.wait(10) == EXIT_PROTOCOL
    os.close(descriptor)


def test_further_descriptors_are_closed(tmp_path):
    path = tmp_path / "private" / "card"
    path.parent.mkdir(0o700)
    memory = SlotWriter()
    with ended(start("--unix", path)) as process, dialled(path, AGREEMENT) as peer:
        peer.greet()
        peer.prove(b"front-end", *[memory.descriptor] * 20)
        peer.say(COUNT)
        deadline_s = time.monotonic() + 5
        while descriptors(process.pid, ("memfd",)) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert descriptors(process.pid, ("memfd",)) == 0
        assert process.poll() is None
    memory.close()


def descriptors(pid: int, of: tuple[str, ...] = ("memfd", "socket", "pidfd")) -> int:
    """How many a process has of these."""
    count = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += any(word in str(one.readlink()) for word in of)
    return count
