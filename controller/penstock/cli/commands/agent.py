"""`penstock agent`: run the node agent; `install` and `uninstall` manage it as a service."""

from __future__ import annotations

import os
import resource
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.commands import install, leave_pool
from penstock.cli.log import log_as
from penstock.cli.options import Simulate, StateDir
from penstock.cli.pool_options import host_for_others, pool_endpoint, pool_options
from penstock.model.address import read_address
from penstock.model.terms import DEFAULT_STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.node.agent import Agent
    from penstock.node.agent.user_limits import Bounds
    from penstock.node.rpc.pool_endpoint import PoolEndpoint
    from penstock.node.rpc.pool_link import PoolLink
    from penstock.node.rpc.tls import Tls

STOPPING = (signal.SIGTERM, signal.SIGINT)
MOST_FILES = 65536  # the same limit as in the systemd unit

app = typer.Typer(help="Run the node agent. To run it as a service: penstock agent install.")
app.command()(install.install)
app.command()(install.uninstall)
app.command()(leave_pool.leave_pool)


@app.callback(invoke_without_command=True)
def agent(
    context: typer.Context,
    simulate: Simulate = None,
    node: Annotated[str | None, typer.Option(help="Name of the node (default: host name).")] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Also serve the API over TCP, with mutual TLS."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The agent's certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key of --tls-cert (PEM).")
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The CA that signs client certificates (PEM)."),
    ] = None,
    meter_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the usage records (default: /var/lib/penstock for root, "
            "$XDG_STATE_HOME/penstock).",
        ),
    ] = None,
    measured: Annotated[
        str,
        typer.Option(
            metavar="STEP",
            help="The mildest last enforcement step that users may choose for use beyond the "
            "quota: deny, throttle, suspend or terminate.",
        ),
    ] = DEFAULT_STEP,
    longest_grace: Annotated[
        str, typer.Option(metavar="TIME", help="The longest grace that users may request.")
    ] = "60s",
    user_limit: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="The most of each device that one user's tenants may hold in total.",
        ),
    ] = "100",
    user_tenants: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="The most tenants that one user may have at a time."),
    ] = 64,
    metrics: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address of the Prometheus metrics (empty: none)."),
    ] = "127.0.0.1:9470",
    probes: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Separate address of /healthz, which reports whether the reconcile loop runs; "
            "empty: none.",
        ),
    ] = "",
    host_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most host memory for the device memory of suspended tenants "
            "(default, and at most: all but a tenth of the machine's memory, as far as it is "
            "available).",
        ),
    ] = None,
    cdi_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Directory in which container runtimes look for CDI devices."
        ),
    ] = Path("/var/run/cdi"),
    shim_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Directory of the shim releases for containers."),
    ] = Path("/var/lib/penstock/shim"),
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,…]",
            help="Join the compute pool of the managers at these addresses, with mutual TLS; or "
            "the path of the manager's socket on this machine.",
        ),
    ] = None,
    pool_devices: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE[,…]", help="The devices that only the pool grants (default: all)."
        ),
    ] = None,
    pool_tflops: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE=TFLOPS",
            help="The rated TFLOPS of a device whose model is not known; repeatable.",
        ),
    ] = None,
    pool_rates: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rated TFLOPS of models by precision (YAML), in place of the ones that Penstock "
            "knows.",
        ),
    ] = None,
    pool_precision: Annotated[
        str,
        typer.Option(
            metavar="PRECISION",
            help="The precision at which a block of the pool is 1 TFLOPS: fp32, tf32, bf16, fp16, "
            "fp8 or int8.",
        ),
    ] = "bf16",
    pool_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="This node's certificate for the pool (PEM), with the name penstock:node:NAME "
            "(default: --tls-cert).",
        ),
    ] = None,
    pool_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The private key of --pool-cert (default: --tls-key)."),
    ] = None,
    pool_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The CA that signs managers' certificates (default: --tls-ca)."
        ),
    ] = None,
    card_python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The Python interpreter for the cards of PyTorch programs, with penstock[torch] "
            "(default: the one that runs the agent).",
        ),
    ] = None,
    card_user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The user of the cards of programs on other nodes, if the agent runs as root "
            "(default: nobody).",
        ),
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Run the node agent: grant quotas and supervise tenants until SIGTERM or Ctrl-C.

    When the agent stops, tenants keep running under their last quota; a restarted agent adopts
    them.
    """
    if context.invoked_subcommand:
        return
    from penstock.cli.request import open_source
    from penstock.node.agent import Agent
    from penstock.node.agent.card_options import checked_card_options
    from penstock.node.containers import Containers
    from penstock.node.rpc.pool_link import PoolLink
    from penstock.node.rpc.server import Server
    from penstock.node.tenants.boot_id import end_former_boot
    from penstock.node.tenants.state import State

    log = log_as("penstock agent")
    tls = _tls(listen, tls_cert, tls_key, tls_ca)
    bounds = _bounds(measured, longest_grace, user_limit, user_tenants)
    endpoint = pool_endpoint(pool, pool_cert or tls_cert, pool_key or tls_key, pool_ca or tls_ca)
    pool_choice = pool_options(pool, pool_devices, pool_tflops or [], pool_precision, pool_rates)
    interpreter, card_uid = checked_card_options(
        card_python, card_user, joins=endpoint is not None, listens=tls is not None
    )
    # Before any thread starts, so that all threads inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    _allow_many_files()
    is_root = os.geteuid() == 0
    state = State.open(state_dir, shared=is_root)
    rebooted = end_former_boot(state)  # before simulated devices are opened
    source = open_source(state, simulate, node or "")
    one = Agent(
        state,
        source,
        node,
        enforces=is_root,
        bounds=bounds,
        containers=Containers(state, releases=shim_dir, specs=cdi_dir) if is_root else None,
        meter_directory=meter_dir,
        host_memory_bytes=_most_host_memory(host_memory),
        report=log,
        watchdog=Watchdog(),
        pool=pool_choice,
        card_python=interpreter,
    )
    one.start()
    try:
        metrics_port = one.recorder.exporter.serve(*read_address(metrics), log) if metrics else None
        if probes:
            one.recorder.exporter.serve_probes(*read_address(probes), log)
        link = None
        if one.pool_member is not None and endpoint is not None:
            link = PoolLink(one.pool_member, endpoint, one.node.name, log)
        server = Server(one, tls, link, endpoint)
        server.start()
        try:
            log(
                "started",
                node=one.node.name,
                socket=str(state.agent_socket),
                port=server.port,
                metrics_port=metrics_port,
                devices=[str(device) for device in one.node.devices],
                tenants=[managed.tenant.name for managed in one.registry.managed_tenants()],
                enforces=one.node.enforces,
            )
            _tell_start(log, rebooted, host_memory)
            if link is not None:
                _serve_other_nodes(one, link, endpoint, tls, server.port, card_uid)
                link.start()
            _notify("READY=1")
            log("stopping", signal=signal.Signals(signal.sigwait(STOPPING)).name)
            _notify("STOPPING=1")
        finally:
            if link is not None:
                link.stop()
            server.stop()
    finally:
        one.stop()


def _serve_other_nodes(
    one: Agent,
    link: PoolLink,
    endpoint: PoolEndpoint | None,
    tls: Tls | None,
    port: int | None,
    card_uid: int | None,
) -> None:
    """Lets agents of other nodes start cards here, if this agent listens for them."""
    link.card_uid = card_uid
    if tls is not None:
        one.card_workers.host = host_for_others(tls.address, endpoint)
        link.address = f"{one.card_workers.host}:{port}"


def _allow_many_files() -> None:
    """Raises the limit on open files: a tenant takes about ten, and a shell's limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _size(host_memory: str | None) -> int | None:
    from penstock.model import PenstockError, QuantityError, parse_memory

    if host_memory is None:
        return None
    try:
        return parse_memory(host_memory)
    except QuantityError as error:
        raise PenstockError(
            f"invalid value {host_memory!r} for --host-memory", str(error), "write it like 64Gi"
        ) from error


def _most_host_memory(host_memory: str | None) -> int | None:
    """The bound of --host-memory, as far as this machine can spare it."""
    from penstock.node.checkpoint.host_memory import most_host_memory

    wanted_bytes = _size(host_memory)
    return None if wanted_bytes is None else min(wanted_bytes, most_host_memory())


def _tell_start(log: Callable[..., None], rebooted: list[str], host_memory: str | None) -> None:
    """Logs what the administrator should know after a start."""
    from penstock.model import human_memory

    if rebooted:
        log("the machine was rebooted", ended=rebooted)
    wanted_bytes, bound_bytes = _size(host_memory), _most_host_memory(host_memory)
    if wanted_bytes is None or bound_bytes is None or wanted_bytes <= bound_bytes:
        return
    bound = human_memory(bound_bytes, down=True)
    log(
        "host memory is bounded",
        bound=bound,
        reason=f"--host-memory={human_memory(wanted_bytes)} is more than this machine can spare "
        "for released device memory: a tenth of its memory stays available",
        fix=f"write --host-memory={bound} or less, or leave it out",
    )


def _bounds(measured: str, longest_grace: str, user_limit: str, user_tenants: int) -> Bounds:
    from penstock.model import PenstockError, QuantityError, parse_cores, parse_duration_ns
    from penstock.model.terms import STEPS
    from penstock.node.admission.checks import check_grace
    from penstock.node.agent.user_limits import Bounds

    step = next((one for one in STEPS if one == measured), None)
    if step is None:
        raise PenstockError(
            f"invalid step {measured!r} for --measured",
            f"valid steps are {', '.join(STEPS)}",
            "choose one of them",
        )
    try:
        grace_ns = parse_duration_ns(longest_grace, or_none=True)
    except QuantityError as error:
        raise PenstockError(
            f"invalid value {longest_grace!r} for --longest-grace", str(error), "write it like 60s"
        ) from error
    check_grace(grace_ns)
    try:
        return Bounds(step, grace_ns, parse_cores(user_limit), user_tenants)
    except QuantityError as error:
        raise PenstockError(
            f"invalid value {user_limit!r} for --user-limit",
            "it must be a percentage from 0.1 to 100", "write it like 50",
        ) from error  # fmt: skip


def _tls(
    listen: str | None, certificate: Path | None, key: Path | None, authority: Path | None
) -> Tls | None:
    from penstock.model import PenstockError
    from penstock.node.rpc.tls import Tls

    files = {"--tls-cert": certificate, "--tls-key": key, "--tls-ca": authority}
    if listen is None:
        if any(files.values()):
            raise PenstockError(
                "certificates are given without an address", "--listen is missing",
                "add --listen HOST:PORT",
            )  # fmt: skip
        return None
    if certificate is None or key is None or authority is None:
        missing = ", ".join(option for option, file in files.items() if file is None)
        raise PenstockError(
            "--listen needs mutual TLS", f"{missing} is missing",
            "give all three files, because any client that can connect controls the node's devices",
        )  # fmt: skip
    return Tls(listen, certificate, key, authority)


class Watchdog:
    """Periodic task that notifies systemd's watchdog, if enabled, that the reconcile loop runs.

    systemd kills an agent that sends nothing for $WATCHDOG_USEC; this task sends four times as
    often.
    """

    def __init__(self) -> None:
        asked_us = os.environ.get("WATCHDOG_USEC", "")
        ours = os.environ.get("WATCHDOG_PID") in {None, str(os.getpid())}
        self._period_ns = int(asked_us) * 1000 // 4 if asked_us.isdecimal() and ours else None
        self._told_ns = 0

    def __call__(self, now_ns: int) -> bool:
        """One iteration."""
        if self._period_ns is not None and now_ns - self._told_ns >= self._period_ns:
            self._told_ns = now_ns
            _notify("WATCHDOG=1")
        return True


def _notify(state: str) -> None:
    """Notifies systemd (sd_notify) if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        notifier.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
