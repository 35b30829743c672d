"""Cards for the tests: workers as real processes, over each kind of connection."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.card_link.support.worker import KINDS, TOKEN

from penstock.card.link import Agreement, CardLink, LinkSettings, TcpEndpoint, UnixEndpoint
from penstock.card.link.spawned import spawn

PROJECT = Path(__file__).parents[3]
MODULE = "tests.card_link.support.worker"
AGREEMENT = Agreement("app", TOKEN)
PATH = {"PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}
HASTY = LinkSettings(connect_s=20)


@contextlib.contextmanager
def spawned(name: str = "card 1", *arguments: str, **options):
    """A worker as a child, over a socket pair."""
    card = spawn(name, MODULE, kinds=KINDS, arguments=arguments, variables=PATH, **options)
    try:
        yield card
    finally:
        card.link.abort()
        card._process.end(0)


def start(*arguments: object, **options) -> subprocess.Popen[str]:
    """A worker as a program of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *map(str, arguments)],
        env={**os.environ, **PATH}, stdout=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


@contextlib.contextmanager
def ended(process: subprocess.Popen):
    """Ends the process, if it still runs."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def on_unix_socket(folder: Path, *arguments: object, name: str = "card 1", **options):
    """A worker that listens on a unix socket, and the link to it."""
    private = folder / "private"
    private.mkdir(0o700)
    path = private / "card"
    with ended(start("--unix", path, *arguments)) as process:
        link = CardLink(
            name, UnixEndpoint(path), AGREEMENT, kinds=KINDS, **{"settings": HASTY, **options}
        )
        try:
            yield link, process
        finally:
            link.abort()


def write_identity(folder: Path, identity) -> Path:
    """The identity's files."""
    folder.mkdir()
    for name in ("certificate", "key", "authority"):
        (folder / name).write_bytes(getattr(identity, name))
    return folder


@contextlib.contextmanager
def over_tls(folder: Path, identities, *arguments: object, agreement: Agreement = AGREEMENT):
    """A worker that listens for TLS, and its endpoint; `identities`: the worker's and ours."""
    theirs, ours = identities
    files = write_identity(folder / "worker", theirs)
    with ended(start("--identity", files, "--peer", ours.fingerprint(), *arguments)) as process:
        port = int(process.stdout.readline())
        yield TcpEndpoint("127.0.0.1", port, ours, theirs.fingerprint()), process


def link_to(endpoint, agreement: Agreement = AGREEMENT, **options) -> CardLink:
    """A link to the worker of the tests."""
    return CardLink("card 1", endpoint, agreement, kinds=KINDS, **{"settings": HASTY, **options})
