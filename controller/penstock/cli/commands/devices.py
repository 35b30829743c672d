"""`penstock devices`: list this machine's devices of any kind, with their health."""

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
            help="nvidia, simulated, ascend, amd, tpu, bpu, fpga or cpu; repeatable.",
        ),
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(metavar="PROFILE[,N]", help="List a simulated GPU: h200; two of them: l4,2."),
    ] = None,
    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o", parser=one_of(Output), metavar="FORMAT", help="table, json or yaml."
        ),
    ] = Output.table,
    state_dir: StateDir = None,
) -> None:
    """List the accelerators and processors of this machine, as reported by their own tools.

    N/A marks a value that is not reported; JSON and YAML give the reason and what to do about it.
    If an agent runs, devices that it found lost or unhealthy are marked.
    """
    from penstock.devices.discovery import survey

    node = _node(state_dir)
    found = survey(_kinds(kind), machine=_machine(state_dir, simulate, node))
    if node is not None:
        found = _as_the_agent_says(found, node)
    if output is Output.table:
        from penstock.cli.render.device_table import device_table
        from penstock.cli.render.foreign import foreign_lines, owner_lines
        from penstock.cli.render.table import console

        console().print(device_table(found))
        for line in [*foreign_lines(node), *owner_lines(node)] if node is not None else []:
            console().print(line, style="yellow", markup=False, highlight=False)
        return
    from penstock.cli.render.output import print_data

    print_data({"kinds": [one.as_dict() for one in found]}, output)


def _kinds(words: list[str] | None) -> list[Kind]:
    from penstock.devices.inventory import KINDS
    from penstock.model import PenstockError

    for word in words or []:
        if word not in KINDS:
            raise PenstockError(
                f"unknown kind of device {word!r}", f"valid kinds are {', '.join(KINDS)}",
                "choose one of them, or leave --kind out",
            )  # fmt: skip
    return [one for one in KINDS if not words or one in words]


def _machine(state_dir: Path | None, simulate: str | None, node: NodeMessage | None) -> Path | None:
    """The simulated machine given by --simulate, by the environment, or by the agent."""
    if simulate is not None:
        from penstock.node.tenants.simulated_machines import simulated_machine
        from penstock.node.tenants.state import State

        return simulated_machine(State.open(state_dir), simulate).machine
    named = os.environ.get("PENSTOCK_SIM_MACHINE") or (node.machine if node else "")
    return Path(named) if named else None


def _node(state_dir: Path | None) -> NodeMessage | None:
    """The local agent's report; None if there is no agent, or if the agent does not respond."""
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
        say(f"device health from the agent is missing: {error}")
        return None


def _as_the_agent_says(found: list[Survey], node: NodeMessage) -> list[Survey]:
    """Adds what the agent knows: lost and unhealthy devices, and the owner of each device."""
    from penstock.devices.inventory import Health, NotAvailable, blank

    said = {
        one.uuid: (one, Health("lost" if one.health == "lost" else "unhealthy", one.health_reason))
        for one in node.devices
        if one.health in {"unhealthy", "lost"}
    }
    owners = {one.uuid: one.owner for one in node.devices if one.owner}
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
        if uuid not in shown  # its driver no longer lists it
    ]
    answer = []
    for survey in found:
        reports = [
            dataclasses.replace(one, health=said[one.id][1]) if one.id in said else one
            for one in survey.devices
        ]
        reports = [
            dataclasses.replace(one, attributes={**one.attributes, "owner": owners[one.id]})
            if one.id in owners
            else one
            for one in reports
        ]
        reports += gone if survey.kind == kind else []
        answer.append(dataclasses.replace(survey, devices=tuple(reports)))
    return answer
