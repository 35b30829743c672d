"""`penstock pool serve`: run the manager of a compute pool."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.commands.agent import STOPPING, _allow_many_files, _notify, _tls
from penstock.cli.log import log_as
from penstock.cli.options import Web, WebAddress, WebOpen


def serve(
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve nodes and clients over TCP, by mutual TLS."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The manager's certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key of --tls-cert (PEM).")
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The CA that signs clients' certificates (PEM)."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the pool is kept: sqlite:////PATH, or postgresql+psycopg://… for two "
            "managers (default: pool.db in /var/lib/penstock for root, $XDG_STATE_HOME/penstock).",
        ),
    ] = None,
    socket_path: Annotated[
        Path | None,
        typer.Option(
            "--socket",
            metavar="PATH",
            help="The unix socket (default: pool.sock in the directory of the default database).",
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="The precision at which a block is 1 TFLOPS; nodes must use it too.")
    ] = "bf16",
    node_timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long a node may be silent before it has left.")
    ] = "60s",
    lease: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long a claim outlasts its holder's last sign of life."
        ),
    ] = "30s",
    min_run: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long a resumed application runs at least."),
    ] = "60s",
    ageing: Annotated[
        str, typer.Option(metavar="TIME", help="The wait that counts as one priority more.")
    ] = "1h",
    patience: Annotated[
        str,
        typer.Option(metavar="TIME", help="The wait after which smaller claims overtake no more."),
    ] = "10m",
    highest_priority: Annotated[
        int,
        typer.Option(
            metavar="N", help="The highest priority of callers who are no administrators."
        ),
    ] = 100,
    web: Web = False,
    web_address: WebAddress = None,
    web_open: WebOpen = False,
) -> None:
    """Run the manager of a compute pool until SIGTERM or Ctrl-C.

    Nodes join with penstock agent --pool HOST:PORT. What a manager has answered outlasts its death:
    its nodes go on meanwhile, and the next manager with the same database goes on where it was.
    With --web, a page shows the pool live: nodes, who holds which blocks, and who waits for what.
    """
    from penstock.cli.web_page import address_of, page_of

    address = address_of(web, web_address, web_open)
    from penstock.devices.rates import PRECISIONS
    from penstock.model import PenstockError

    if importlib.util.find_spec("sqlalchemy") is None:
        raise PenstockError(
            "penstock pool serve needs SQLAlchemy", "the extra `pool` is not installed",
            "run pip install 'penstock[pool]'",
        )  # fmt: skip
    from penstock.pool.rpc.server import PoolServer
    from penstock.pool.settings import Settings
    from penstock.scheduling.blocks.rules import Rules

    if precision not in PRECISIONS:
        raise PenstockError(
            f"unknown precision {precision!r} for --precision",
            f"known are {', '.join(PRECISIONS)}", "name one of them",
        )  # fmt: skip
    log = log_as("penstock pool serve")
    tls = _tls(listen, tls_cert, tls_key, tls_ca)
    rules = Rules(
        _duration("--min-run", min_run),
        _duration("--ageing", ageing, least_ns=1),
        _duration("--patience", patience),
    )
    host = socket.gethostname()
    port = listen.rpartition(":")[2] if listen else ""
    settings = Settings(
        rules,
        _duration("--node-timeout", node_timeout, least_ns=10**9),
        _duration("--lease", lease, least_ns=10**9),
        highest_priority,
        precision,
        f"{host}:{port}" if port else f"{host} (process {os.getpid()})",
    )
    if database is not None:
        _check_database(database)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    _allow_many_files()
    if database is None or socket_path is None:
        folder = _state_directory()
        database = database or f"sqlite:///{folder / 'pool.db'}"
        socket_path = socket_path or folder / "pool.sock"
    server = PoolServer(database, socket_path, settings, tls, log)
    page = page_of(address, server.web_map(), log) if address is not None else None
    try:
        if page is not None:
            page.start()
        server.start(for_all=os.geteuid() == 0)
        url = page.url if page is not None else None
        log("started", socket=str(socket_path), port=server.port, leader=settings.leader, web=url)
        _notify("READY=1")
        number = signal.sigwait(STOPPING)
        log("stopping", signal=signal.Signals(number).name)
        _notify("STOPPING=1")
    finally:
        if page is not None:
            page.stop()
        server.stop()


def _check_database(url: str) -> None:
    """Raises `PenstockError` if the URL names no database that a pool can be kept in."""
    from penstock.model import PenstockError

    kind, is_url, _ = url.partition("://")
    if is_url and kind.partition("+")[0] in {"sqlite", "postgresql"}:
        return
    raise PenstockError(
        f"invalid --database: {url!r}", "a pool is kept in SQLite or PostgreSQL, named by a URL",
        "write sqlite:////PATH (an absolute path), or postgresql+psycopg://USER@HOST/NAME",
    )  # fmt: skip


def _state_directory() -> Path:
    from penstock.model import PenstockError

    if os.geteuid() == 0:
        folder = Path("/var/lib/penstock")
    else:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = Path(base) / "penstock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PenstockError(
            f"the directory {folder} cannot be made", error.strerror or str(error),
            "name other places: --database and --socket",
        ) from error  # fmt: skip
    return folder


def _duration(option: str, text: str, least_ns: int = 0) -> int:
    from penstock.model import PenstockError, QuantityError, parse_duration_ns

    try:
        duration_ns = parse_duration_ns(text, or_none=least_ns == 0)
    except QuantityError as error:
        raise PenstockError(
            f"invalid value {text!r} for {option}", str(error), "write it like 60s"
        ) from error
    if duration_ns < least_ns:
        raise PenstockError(
            f"invalid value {text!r} for {option}", f"it must be at least {least_ns / 1e9:g} s",
            "write it like 60s",
        )  # fmt: skip
    return duration_ns
