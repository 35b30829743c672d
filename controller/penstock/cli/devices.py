"""`penstock devices`: what is in this machine, of any kind, and how it does."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, StateDir, one_of

if TYPE_CHECKING:
    from penstock.devices.inventory import Kind, Survey
    from penstock.node.rpc import NodeMessage


def devices(
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="nvidia, simulated, ascend, amd, tpu, bpu, fpga, cpu; may be given several times.",
        ),
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="PROFILE[,N]", help="Look at a simulated GPU: h200, l4,2.")
    ] = None,
    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o", parser=one_of(Output), metavar="FORMAT", help="table, json or yaml."
        ),
    ] = Output.table,
    state_dir: StateDir = None,
) -> None:
    """List the accelerators and processors of this machine, with what their own tools tell of them.

    N/A stands for what is not told; JSON and YAML say why, and what to do about it. Where an agent
    runs, devices that it found lost or unhealthy are shown so.
    """
    from penstock.devices.discovery import survey

    node = _node(state_dir)
    found = survey(_kinds(kind), machine=_machine(state_dir, simulate, node))
    if node is not None:
        found = _as_the_agent_says(found, node)
    if output is Output.table:
        from penstock.cli.device_table import device_table
        from penstock.cli.foreign import foreign_lines
        from penstock.cli.table import console

        console().print(device_table(found))
        for line in foreign_lines(node) if node is not None else []:
            console().print(line, style="yellow", markup=False, highlight=False)
        return
    from penstock.cli.output import print_data

    print_data({"kinds": [one.as_dict() for one in found]}, output)


def _kinds(words: list[str] | None) -> list[Kind]:
    from penstock.devices.inventory import KINDS
    from penstock.model import PenstockError

    for word in words or []:
        if word not in KINDS:
            raise PenstockError(
                f"there is no kind of device called {word!r}", f"kinds are {', '.join(KINDS)}",
                "name one of them, or leave --kind out",
            )  # fmt: skip
    return [one for one in KINDS if not words or one in words]


def _machine(state_dir: Path | None, simulate: str | None, node: NodeMessage | None) -> Path | None:
    """The simulated machine that is asked for, that this shell is on, or that the agent owns."""
    if simulate is not None:
        from penstock.node.tenants.simulated_machines import simulated_machine
        from penstock.node.tenants.state import State

        return simulated_machine(State.open(state_dir), simulate).machine
    named = os.environ.get("PENSTOCK_SIM_MACHINE") or (node.machine if node else "")
    return Path(named) if named else None


def _node(state_dir: Path | None) -> NodeMessage | None:
    """What the agent of this machine says; None: there is none, or it does not answer."""
    from penstock.cli.say import say
    from penstock.model import PenstockError
    from penstock.node.tenants.state import agent_sockets

    if not agent_sockets(state_dir):
        return None
    from penstock.node.rpc import find_agent

    try:
        agent = find_agent(state_dir)
        if agent is None:
            return None
        with agent:
            return agent.node()
    except PenstockError as error:
        say(f"the agent was not asked for what it knows of devices: {error}")
        return None


def _as_the_agent_says(found: list[Survey], node: NodeMessage) -> list[Survey]:
    """The agent listens to the driver all the time: it knows what failed, and what went away."""
    from penstock.devices.inventory import Health, NotAvailable, blank

    said = {
        one.uuid: (one, Health("lost" if one.health == "lost" else "unhealthy", one.health_reason))
        for one in node.devices
        if one.health in {"unhealthy", "lost"}
    }
    shown = {report.id for survey in found for report in survey.devices}
    kind: Kind = "simulated" if node.machine else "nvidia"
    gone = [
        dataclasses.replace(
            blank(kind, one.index, uuid, one.name, NotAvailable(f"it does not answer: {health}")),
            memory_total_bytes=one.memory_bytes,
            health=health,
            simulated=one.simulated,
        )
        for uuid, (one, health) in said.items()
        if uuid not in shown  # its driver lists it no more
    ]
    answer = []
    for survey in found:
        reports = [
            dataclasses.replace(one, health=said[one.id][1]) if one.id in said else one
            for one in survey.devices
        ]
        reports += gone if survey.kind == kind else []
        answer.append(dataclasses.replace(survey, devices=tuple(reports)))
    return answer
