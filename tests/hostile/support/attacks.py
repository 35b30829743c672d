"""Attacks of one user on a node: python attacks.py UID STATE AGENT-PID PORT WAY.

The user has a tenant "mine"; STATE is the agent's directory, PORT that of its metrics. Each WAY
prints "ready" when it has started, and continues until it is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.admission.admit import Request

# Imported before it becomes a user, who may not read the folder of Python.
from penstock.node.rpc import AgentClient

if TYPE_CHECKING:
    from collections.abc import Callable

uid, state, agent_pid, port = int(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:5])
SOCKET, PAGE = state / "agent.sock", state / "tenants/mine/usage"
CHANCE = random.Random()  # noqa: S311 - no secret
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NAME, PR_SET_DUMPABLE, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNS = (
    15,
    4,
    1 << 28,
    1 << 29,
    1 << 17,
)
kept: list[object] = []
ways: dict[str, Callable[[], None]] = {}


def way(function: Callable[[], None]) -> Callable[[], None]:
    ways[function.__name__] = function
    return function


def ready() -> None:
    print("ready", flush=True)


def repeat(function: Callable[[], None], pause_s: float = 0.0) -> None:
    """Prints "ready" after the first success; later calls may fail, as others end their objects."""
    function()
    ready()
    while True:
        with contextlib.suppress(OSError, PenstockError):
            function()
        time.sleep(pause_s)


def children(count: int, function: Callable[[], None] = lambda: None) -> None:
    """Starts processes that run `function` and then sleep; ready unless one of them failed."""
    for _ in range(count):
        if os.fork() == 0:
            try:
                function()
                while True:
                    signal.pause()
            except BaseException as error:  # noqa: BLE001 - a child must not go on as its parent
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
    time.sleep(0.3)
    if os.waitpid(-1, os.WNOHANG) != (0, 0):
        sys.exit("a child has ended")
    ready()
    while True:
        signal.pause()


def request(name: str, **more: object) -> Request:
    fields = {"command": ("x",), "memory_bytes": [1 << 20], "cores_permille": [1]}
    return Request(**{**fields, "lifetime": "until-revoked", **more}, name=name)


@way
def writes_noise_into_its_page() -> None:
    page = os.open(PAGE, os.O_RDWR)
    repeat(lambda: os.pwrite(page, os.urandom(4096), CHANCE.randrange(0, 1 << 21)) and None)


@way
def cuts_its_page_and_makes_it_whole() -> None:
    size_bytes = PAGE.stat().st_size

    def cut() -> None:
        os.truncate(PAGE, CHANCE.choice([0, 1, 4096]))
        os.truncate(PAGE, size_bytes)

    repeat(cut, 0.001)


@way
def holds_its_page_open_a_thousand_times() -> None:
    kept.extend(os.open(PAGE, os.O_RDWR) for _ in range(1000))
    repeat(lambda: None, 1)


@way
def locks_whatever_it_can_open() -> None:
    for path in (
        PAGE,
        PAGE.with_name("quota"),
        PAGE.with_name("grant.yaml"),
        state / "machines/h200x1",
    ):
        for flags in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(OSError):
                kept.append(descriptor := os.open(path, flags | os.O_NONBLOCK))
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for lease in (fcntl.F_WRLCK, fcntl.F_RDLCK):
        for descriptor in kept:
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, lease)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    repeat(lambda: None, 1)


@way
def starts_processes_that_end_at_once() -> None:
    def one() -> None:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    repeat(one)


@way
def leaves_a_thousand_dead_unburied() -> None:
    for _ in range(1000):
        if os.fork() == 0:
            os._exit(0)
    repeat(lambda: None, 1)


@way
def has_a_thousand_threads() -> None:
    threading.stack_size(1 << 16)
    for _ in range(1000):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    repeat(lambda: None, 1)


@way
def has_processes_whose_first_thread_has_ended() -> None:
    def end() -> None:
        threading.Thread(target=threading.Event().wait).start()
        libc.pthread_exit(None)

    children(100, end)


@way
def stops_its_processes() -> None:
    children(300, lambda: os.kill(os.getpid(), signal.SIGSTOP))


@way
def begins_sessions_without_end() -> None:
    def one() -> None:
        if (pid := os.fork()) == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.2)
            os._exit(0)
        os.waitpid(pid, 0)

    repeat(one, 0.001)


@way
def gives_its_processes_names_that_break_lines() -> None:
    def rename() -> None:
        while True:
            for name in (b") R 1 1 1 (", b"\n\nx\n", b"\x1b[2J\x1b[H", b"\xff\xfe", b""):
                libc.prctl(PR_SET_NAME, name, 0, 0, 0)
                time.sleep(0.01)

    children(50, rename)


@way
def names_the_neighbour_in_long_environments() -> None:
    name = f"PENSTOCK_TENANT_DIR={state}/tenants/good"
    variables = [f"X{number}={'x' * 1000}" for number in range(100)]
    environment = dict(one.split("=", 1) for one in (*variables, name))
    command = ["\x1b[2Jsleep", "600"]
    children(200, lambda: os.execve("/bin/sleep", command, environment))  # noqa: S606


@way
def hides_its_processes() -> None:
    children(300, lambda: libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) and None)


@way
def nests_namespaces() -> None:
    def deeper() -> None:
        for _ in range(20):
            if libc.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS):
                raise OSError(ctypes.get_errno(), "unshare")
            if os.fork():
                signal.pause()

    children(15, deeper)


@way
def has_memory_maps_of_thousands_of_lines() -> None:
    def map_much() -> None:
        for _ in range(20_000):
            one = mmap.mmap(-1, 2 * mmap.PAGESIZE)
            kept.append(one)
            start = ctypes.addressof(ctypes.c_char.from_buffer(one))
            libc.mprotect(ctypes.c_void_p(start), mmap.PAGESIZE, 1)

    children(10, map_much)


@way
def tries_signals_and_looks_at_the_agent() -> None:
    def one() -> None:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(OSError):
                os.kill(agent_pid, number)
        for name in ("mem", "environ", "maps", "fd/3", "root", "ns/mnt"):
            with contextlib.suppress(OSError):
                kept.append(os.open(f"/proc/{agent_pid}/{name}", os.O_RDWR))
        libc.ptrace(16, agent_pid, 0, 0)

    repeat(one)


@way
def watches_all_that_it_may() -> None:
    events = libc.inotify_init1(0o4000)
    for path in (state, PAGE, PAGE.parent, SOCKET, Path("/run"), Path("/proc")):
        libc.inotify_add_watch(events, os.fsencode(path), 0xFFF)  # refused for some
    repeat(lambda: None, 1)


@way
def orders_without_end() -> None:
    agent = AgentClient.local(SOCKET)

    def orders() -> None:
        agent.suspend("mine")
        agent.resume("mine")

    repeat(orders)


@way
def is_granted_and_revokes_without_end() -> None:
    agent = AgentClient.local(SOCKET)

    def orders() -> None:
        try:
            agent.grant(request("more"))
        finally:
            agent.revoke("more", 0)

    repeat(orders)


@way
def asks_for_what_nobody_grants() -> None:
    agent = AgentClient.local(SOCKET)
    wrong = (
        request("../../x"), request("x\n"), request("\x1b[2J"), request("x" * 10_000),
        request("x", memory_bytes=[1 << 62]), request("x", cores_permille=[1_000_000]),
        request("x", command=("y" * 100_000,)), request("x", labels={"l": "\0" * 1000}),
        request("good"), request("x", memory_bytes=[]),
    )  # fmt: skip

    def orders() -> None:
        for one in wrong:
            with contextlib.suppress(PenstockError, ValueError, TypeError):
                agent.grant(one)

    repeat(orders)


@way
def orders_what_is_the_neighbours() -> None:
    agent = AgentClient.local(SOCKET)

    def orders() -> None:
        for order in (agent.suspend, lambda name: agent.revoke(name, 0), agent.resume):
            with contextlib.suppress(PenstockError):
                order("good")

    repeat(orders)


@way
def reads_none_of_its_events() -> None:
    for _ in range(16):
        agent = AgentClient.local(SOCKET)
        events = agent.events(follow=True)
        next(events)
        kept.append((agent, events))
    agent = AgentClient.local(SOCKET)

    def orders() -> None:
        agent.suspend("mine")
        agent.resume("mine")

    repeat(orders)


@way
def says_nonsense_at_the_agents_socket() -> None:
    def one() -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(1)
            made.connect(str(SOCKET))
            made.send(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * CHANCE.choice([0, 1]) + os.urandom(9000)
            )
            with contextlib.suppress(OSError):
                made.recv(1 << 16)

    repeat(one)


@way
def says_nonsense_at_its_handshake_socket() -> None:
    def one() -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        kept.append(made)
        del kept[:-200]
        made.connect(str(PAGE.with_name("handshake")))
        made.send(os.urandom(CHANCE.choice([1, 72, 4096])))

    repeat(one)


@way
def asks_for_metrics_without_end() -> None:
    def ask() -> None:
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 1) as one,
            ):
                one.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                one.recv(100)

    for _ in range(20):
        threading.Thread(target=ask, daemon=True).start()
    repeat(lambda: None, 1)


def main() -> None:
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (4096, 4096))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    ways[sys.argv[5]]()


if __name__ == "__main__":
    main()
