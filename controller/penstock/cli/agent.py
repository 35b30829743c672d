"""`penstock agent`: run the node agent; `install` and `uninstall` manage it as a service."""

from __future__ import annotations

import os
import resource
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import install
from penstock.cli.address import read_address
from penstock.cli.log import log_as
from penstock.cli.options import Simulate, StateDir
from penstock.model.limits import DEFAULT_STEP

if TYPE_CHECKING:
    from penstock.node.agent.user_limits import Bounds
    from penstock.node.rpc.tls import Tls

STOPPING = (signal.SIGTERM, signal.SIGINT)
MOST_FILES = 65536  # the same limit as in the systemd unit

app = typer.Typer(help="Run the node agent. To run it as a service: penstock agent install.")
app.command()(install.install)
app.command()(install.uninstall)


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
        typer.Option(metavar="HOST:PORT", help="Address of the Prometheus metrics; empty: none."),
    ] = "127.0.0.1:9470",
    probes: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Separate address of /healthz, which reports whether the reconcile loop runs; "
            "empty: none.",
        ),
    ] = "",
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
    from penstock.node.agent.enforcement_task import EnforcementTask
    from penstock.node.agent.usage_recorder import UsageRecorder
    from penstock.node.containers import Containers
    from penstock.node.rpc.server import Server
    from penstock.node.tenants.boot_id import end_former_boot
    from penstock.node.tenants.state import State

    log = log_as("penstock agent")
    tls = _tls(listen, tls_cert, tls_key, tls_ca)
    bounds = _bounds(measured, longest_grace, user_limit, user_tenants)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # before any thread starts: all inherit it
    _allow_many_files()
    state = State.open(state_dir, shared=os.geteuid() == 0)
    rebooted = end_former_boot(state)  # before simulated devices are opened
    one = Agent(state, open_source(state, simulate, node or ""), node)
    one.report = log
    one.bounds = bounds
    if one.enforces:
        one.containers = Containers(state, releases=shim_dir, specs=cdi_dir)
    recorder = UsageRecorder(one, meter_dir)
    one.periodic_tasks += [EnforcementTask(one), recorder, Watchdog()]
    one.at_end.append(recorder.close_tenant)
    one.start()
    try:
        metrics_port = recorder.serve(*read_address(metrics)) if metrics else None
        if probes:
            recorder.serve_probes(*read_address(probes))
        server = Server(one, tls)
        server.start()
        try:
            log(
                "started",
                node=one.node,
                socket=str(state.agent_socket),
                port=server.port,
                metrics_port=metrics_port,
                devices=[str(device) for device in one.devices],
                tenants=[managed.tenant.name for managed in one.managed_tenants()],
                enforces=one.enforces,
            )
            if rebooted:
                log("the machine was rebooted", ended=rebooted)
            _notify("READY=1")
            number = signal.sigwait(STOPPING)
            log("stopping", signal=signal.Signals(number).name)
            _notify("STOPPING=1")
        finally:
            server.stop()
    finally:
        one.stop()
        recorder.close()


def _allow_many_files() -> None:
    """Raises the limit on open files: a tenant takes about ten; shells allow for 100 tenants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bounds(measured: str, longest_grace: str, user_limit: str, user_tenants: int) -> Bounds:
    from penstock.model import PenstockError, QuantityError, parse_cores, parse_duration_ns
    from penstock.model.limits import STEPS
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
            f"invalid value {longest_grace!r} for --longest-grace", str(error), "for example 60s"
        ) from error
    check_grace(grace_ns)
    try:
        return Bounds(step, grace_ns, parse_cores(user_limit), user_tenants)
    except QuantityError as error:
        raise PenstockError(
            f"invalid value {user_limit!r} for --user-limit",
            "it must be a percentage from 0.1 to 100", "for example 50",
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
            "any client that can connect controls the node's devices: give all three files",
        )  # fmt: skip
    return Tls(listen, certificate, key, authority)


class Watchdog:
    """Periodic task: notifies systemd's watchdog that the reconcile loop runs, if it is enabled.

    systemd kills an agent that is silent for $WATCHDOG_USEC; this notifies four times as often.
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
