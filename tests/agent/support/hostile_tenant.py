"""Attacks of a tenant's program on its files and its socket. Runs as user UID, for SECONDS.

    hostile_tenant.py UID STATE SECONDS

Prints JSON lines: the files it could write, those it could replace, and the count of each attack.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

from tests.enforce.support.gpu_program import Device

CHANCE = random.Random()  # noqa: S311 - no secret


def everything(state: Path) -> list[Path]:
    """Everything in the state directory, as root sees it."""
    return [state, *(path for path in state.rglob("*") if not path.is_symlink())]


def replaced(directory: Path) -> list[str]:
    """The files that it could replace."""
    done = []
    for name in ("quota", "usage", "grant.yaml", "events.jsonl", "handshake", "processes.json"):
        path, aside = directory / name, directory / f"{name}.aside"
        for way in (
            lambda p=path, a=aside: p.rename(a),
            path.unlink,
            lambda p=path, a=aside: (os.mkfifo(a), a.replace(p)),
            lambda p=path, a=aside: (a.symlink_to("/dev/zero"), a.replace(p)),
            lambda a=aside: a.mkdir(),
            lambda p=path: (p.with_name("events.jsonl.1")).mkdir(),
        ):
            with contextlib.suppress(OSError):
                way()
                done.append(name)
    return done


class Attacks:
    """One method per attack; they are repeated in random order."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.usage = directory / "usage"
        self.has_grown = False
        self.kept: list[object] = []  # locks and connections that are never let go

    def truncate(self) -> None:
        os.truncate(self.usage, CHANCE.choice([0, 1, 4096, 1 << 20]))

    def noise(self) -> None:
        with self.usage.open("r+b") as file:
            file.write(os.urandom(CHANCE.choice([16, 4096, 1 << 20])))

    def many_slots(self) -> None:
        """Claims every slot for a process of another pid namespace that looks alive."""
        with self.usage.open("r+b") as file:
            for offset in range(1 << 19, 2 << 20, 64):
                file.seek(offset)
                file.write((1 << 62 | 5 << 54 | 1 << 32).to_bytes(8, "little"))

    def grow(self) -> None:
        """Grows the page once: a second time would end the tenant (tests/hostile/test_pages.py)."""
        if self.has_grown:
            return
        self.usage.chmod(0o600)  # it may have shut itself out
        with self.usage.open("r+b") as file:
            self.has_grown = True
            file.seek(8 << 20)
            file.write(b"x" * (1 << 20))
        time.sleep(1.2)  # the agent looks once a second

    def modes(self) -> None:
        self.usage.chmod(CHANCE.choice([0, 0o777, 0o200, 0o600]))

    def locks(self) -> None:
        """Locks every file that it can open."""
        if len(self.kept) > 300:
            return
        names = ("quota", "usage", "grant.yaml", "events.jsonl", "supervisor.lock")
        inside = [self.directory / name for name in names]
        for path in [*inside, self.directory, self.directory.parent.parent]:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                self.kept.append(descriptor)
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(OSError):
                    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        with contextlib.suppress(OSError):
            descriptor = os.open(self.usage, os.O_RDWR)
            self.kept.append(descriptor)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def connect(self) -> None:
        for _ in range(200):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                one.connect(str(self.directory / "handshake"))
                one.send(os.urandom(CHANCE.choice([1, 72, 4096])))
            except OSError:
                one.close()
                continue
            if len(self.kept) < 300:
                self.kept.append(one)
            else:
                one.close()

    def events(self) -> None:
        with (self.directory / "events.jsonl").open("ab") as file:
            file.write(b"x" * (1 << 20))

    def stopped(self) -> None:
        """Stops in the middle of work, with memory reserved and launches in progress."""
        child = os.fork()
        if child == 0:
            device = Device()
            device.alloc(64)
            device.launch(5)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)  # it has its memory before the page is spoilt
        self.kept.append(child)


def main() -> None:
    uid, state, seconds = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    directory = Path(os.environ["PENSTOCK_TENANT_DIR"])
    paths = everything(state)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    mine = [path for path in paths if os.access(path, os.W_OK)]
    print(json.dumps(sorted(str(path.relative_to(state)) for path in mine)), flush=True)
    print(json.dumps(replaced(directory)), flush=True)
    attacks = Attacks(directory)
    ways = [attacks.truncate, attacks.noise, attacks.many_slots, attacks.grow, attacks.modes,
            attacks.locks, attacks.connect, attacks.events]  # fmt: skip
    done: Counter[str] = Counter()
    for _ in range(4):  # before the page is spoilt
        with contextlib.suppress(OSError):
            attacks.stopped()
            done["stopped"] += 1
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        way = CHANCE.choice(ways)
        try:
            way()
            done[way.__name__] += 1
        except OSError as error:
            done[f"{way.__name__}: {type(error).__name__}"] += 1
        time.sleep(0.002)
    print(json.dumps(done), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
