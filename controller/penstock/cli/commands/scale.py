"""`penstock scale POLICY -- COMMAND`, `scale status`, `scale stop`: scale replicas by load."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.options import Grace, Output, OutputFormat, Simulate, StateDir, check_command
from penstock.cli.request import (
    open_source,
    policy_of,
    refuse_inside_a_tenant,
    request_of,
    warn_of_obstacles,
)
from penstock.cli.say import say
from penstock.model.terms import DEFAULT_GRACE

if TYPE_CHECKING:
    from types import FrameType

    from penstock.autoscaling.scaler import Scaler
    from penstock.autoscaling.set_store import SetSpec
    from penstock.policy.schema import Scale

ROUND_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _PolicyFirst(TyperGroup):
    """Command group that treats `penstock scale policy.yaml …` as `scale run policy.yaml …`."""

    # Some releases of Typer bundle their own click, others use the installed one.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_PolicyFirst,
    help="Keep as many replicas of a command as its load needs: penstock scale POLICY -- COMMAND.",
    no_args_is_help=True,
)


@app.command()
def run(
    policy: Annotated[
        Path, typer.Argument(metavar="POLICY", help="A QuotaPolicy file with `scale`.")
    ],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The command of a replica.")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Set name; replicas are NAME-1, NAME-2, … (default: the policy's name)."),
    ] = None,
    qps_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Metrics page in Prometheus' text format. With {replica} or {replica+8000} in the "
            "URL there is one page per replica; otherwise the page covers all replicas.",
        ),
    ] = None,
    qps_metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Metric of --qps-url: a request counter, or a rate."),
    ] = None,
    cpu_request: Annotated[
        float,
        typer.Option(min=0.01, max=10000, help="Processors that are 100 % CPU of a replica."),
    ] = 1.0,
    memory_request: Annotated[
        str | None,
        typer.Option(metavar="QUANTITY", help="Host memory that is 100 % memory of a replica."),
    ] = None,
    simulate: Simulate = None,
    grace: Grace = DEFAULT_GRACE,
    ready_after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time from a replica's start until it counts as ready."),
    ] = None,
    detach_replicas: Annotated[
        bool, typer.Option("--detach-replicas", help="Leave the replicas running on exit.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and how many replicas fit.")
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Keep min to max replicas of a command running, scaled by the policy's metrics.

    Each replica is a tenant under the policy's limits and finds its number in $PENSTOCK_REPLICA.
    Ctrl-C ends the replicas, a second Ctrl-C ends them at once. If this process is killed, the
    replicas keep running, and the same command adopts them.
    """
    from penstock.autoscaling.headroom import room_for
    from penstock.autoscaling.request_rate import Requests
    from penstock.autoscaling.sampling import Sampler, window_ns_of
    from penstock.autoscaling.scaler import Scaler
    from penstock.autoscaling.set_store import SetSpec, SetStore
    from penstock.cli.scale_by_agent import (
        AgentTenancy,
        agent_is_anothers,
        agent_socket,
        room_by_agent,
    )
    from penstock.model import PenstockError, parse_duration_ns, parse_memory
    from penstock.node.tenants.state import State
    from penstock.scheduling.replicas.decide import thresholds_of

    refuse_inside_a_tenant()
    check_command(command)
    loaded = policy_of(policy, command[0])
    scale = loaded.policy.spec.scale
    if scale is None:
        raise PenstockError(
            f"policy {loaded} does not scale",
            "it has no `scale`",
            "add `scale: {min: 1, max: 4, metrics: {cpu: {up: 80, down: 40}}}` to its spec",
        )
    grace_ns = parse_duration_ns(grace, or_none=True)
    window_ns = window_ns_of(scale.stabilization)
    if (qps_url is None) != (qps_metric is None):
        raise PenstockError(
            "one of --qps-url and --qps-metric is missing",
            "a page has many metrics, and a metric needs a page",
            "give both, or neither",
        )
    requests = Requests(qps_url, qps_metric, window_ns) if qps_url and qps_metric else None
    warn_of_obstacles(command[0])
    request = request_of(command, None, None, [], None, loaded, None, oversubscribe=False)
    set_name = name or loaded.policy.metadata.name.replace(".", "-")[:57].rstrip("-")
    store = SetStore(State.open(None if agent_is_anothers(state_dir) else state_dir), set_name)
    agent = agent_socket(state_dir, store) if simulate is None else None
    sampler = Sampler(
        State(Path(agent).parent) if agent else store.state,
        thresholds_of(scale),
        window_ns,
        cpu_request=cpu_request,
        memory_request_bytes=parse_memory(memory_request) if memory_request else None,
        requests=requests,
    )
    if agent is None and store.state.has_agent():
        raise PenstockError(
            f"an agent owns {store.state.directory}",
            "a second process would grant the same devices twice",
            "leave --simulate out, or name another --state-dir",
        )
    source = None if agent else open_source(store.state, simulate)
    if dry_run:
        if source is None:
            room, why = room_by_agent(agent or "", request, scale.max)
        else:
            room, why = room_for(store.state, request, source, scale.max)
        _say_plan(SetSpec(store.name, request), scale, room, why)
        return
    machine = str(source.machine) if source is not None and source.machine else None
    spec = SetSpec(store.name, request, machine, agent)
    ready_ns = parse_duration_ns(ready_after) if ready_after else 0
    scaler = Scaler(
        store,
        spec,
        scale,
        sampler,
        grace_ns=grace_ns,
        ready_after_ns=ready_ns,
        requests=requests,
        tenancy=AgentTenancy() if agent else None,
    )
    _loop(scaler, store.name, detach=detach_replicas)


def _loop(scaler: Scaler, name: str, *, detach: bool) -> None:
    """Runs the scaler until a signal ends it."""
    asked = 0

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # keep SIGHUP ignored under nohup
            signal.signal(number, ask)
    if scaler.adopted:
        say(f"{name}: adopts {scaler.adopted} running replicas")
    while not asked:
        _say_all(name, scaler.tick())
        time.sleep(ROUND_S)
    if not detach:
        living = len(scaler.replicas())
        say(f"{name}: ends {living} replicas; a second signal ends them at once")
        scaler.end()
        while not scaler.ended:
            if asked > 1:
                scaler.end_at_once()
            _say_all(name, scaler.tick())
            time.sleep(ROUND_S)
    scaler.close()


def _say_all(name: str, lines: list[str]) -> None:
    for line in lines:
        say(f"{name}: {line}")


def _say_plan(spec: SetSpec, scale: Scale, room: int, why: str) -> None:
    from penstock.model.metric import METRICS
    from penstock.scheduling.replicas.decide import floor_of, thresholds_of

    command = " ".join(spec.request.command)
    print(f"{spec.name}: {floor_of(scale)} to {scale.max} replicas of {command}")
    for metric, threshold in thresholds_of(scale).items():
        print(f"  {METRICS[metric].shown}: grow above {threshold.up:g}, shrink below "
              f"{threshold.down:g}")  # fmt: skip
    print(f"  shrinks after {scale.stabilization / 1e9:g} s")
    print(f"  {room} more fit now" + (f"; then {why}" if why else ""))


@app.command()
def status(
    output: OutputFormat = Output.table,
    state_dir: StateDir = None,
) -> None:
    """List sets of replicas with the wanted number, its reason, and the state of each replica."""
    from penstock.autoscaling.set_status import statuses
    from penstock.node.tenants.state import State

    found = statuses(State.read(state_dir))
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        print_data([one.as_dict() for one in found], output)
        return
    if not found:
        print("no replicas")
    for one in found:
        by = f"scaler {one.scaler_pid}" if one.scaler_pid else "no scaler; replicas keep running"
        reason = f": {one.reason}" if one.reason and one.scaler_pid else ""
        print(f"{one.name} ({by}): wants {one.wanted} of {one.least} to {one.most}{reason}")
        for replica in one.replicas:
            pids = f" pid {', '.join(map(str, replica.pids))}" if replica.pids else ""
            why = f" ({replica.reason})" if replica.reason else ""
            print(f"  {replica.tenant:24} {replica.phase:9}{pids}{why}")


@app.command()
def stop(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name, as listed by penstock scale status.")
    ],
    grace: Grace = DEFAULT_GRACE,
    state_dir: StateDir = None,
) -> None:
    """End the replicas of a set that no scaler manages any more."""
    from penstock.autoscaling.set_status import stop as stop_set
    from penstock.model import parse_duration_ns
    from penstock.node.tenants.state import State

    with contextlib.suppress(KeyboardInterrupt):
        count = stop_set(State.read(state_dir), name, parse_duration_ns(grace, or_none=True))
        say(f"{name}: ended {count} replicas")
        sys.exit(0)
    sys.exit(130)
