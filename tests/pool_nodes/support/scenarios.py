"""What happens on the four nodes: each function is run in its own namespaces, by `namespaces`."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import time
from typing import TYPE_CHECKING

from tests.pool_nodes.support import card_faults
from tests.pool_nodes.support.books import Watcher
from tests.pool_nodes.support.pool import Pool
from tests.pool_nodes.support.programs import Program
from tests.pool_nodes.support.trainings import LOOKS_S, PROGRAM, WITHIN_S, Training, losses_in

from penstock.training.names import application_name

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

NODE = "node-4"  # with one card, which two applications fill
ELSEWHERE = "node-1"
STEPS = 2000
URGENT_STEPS = 100


def _lower(pool: Pool, steps: int) -> list[Program]:
    blocks = pool.blocks_of(NODE)
    halves = (blocks // 2, blocks - blocks // 2)
    return [
        Program(pool, NODE, f"low-{n}", half, steps, seed=n) for n, half in enumerate(halves, 1)
    ]


def _undisturbed(pool: Pool, steps: int) -> list[dict]:
    """The same computations on a card that nobody else uses, at the same time as the others."""
    blocks = pool.blocks_of(ELSEWHERE) // 2
    alone = [Program(pool, ELSEWHERE, f"alone-{n}", blocks, steps, seed=n, hold="") for n in (1, 2)]
    return [one.start().result() for one in alone]


def preemption(folder: Path) -> dict:
    """An urgent application takes the card of two others, which go on when it has ended."""
    pool = Pool(folder)
    pool.start()
    machine = pool.machine(NODE)
    lower = [one.start() for one in _lower(pool, STEPS)]
    for one in lower:
        one.wait_for_steps(20)
    full = machine.usage(0)
    wall_ns = time.time_ns() - time.monotonic_ns()
    urgent = Program(pool, NODE, "urgent", pool.blocks_of(NODE), STEPS, priority=10).start()
    began = urgent.wait_for_steps(1)
    stopped = [one.progress() for one in lower]
    held = sum(r.memory_bytes for r in machine.record(0) if r.alive and r.tag.startswith("low-"))
    phases = pool.phases()
    computed = urgent.result()
    done = [one.result() for one in lower]
    decided = {
        e["application"]: dt.datetime.fromisoformat(e["time"]).timestamp() * 1e9 - wall_ns
        for e in reversed(pool.events())
        if e["event"] == "suspending"
    }
    return {
        "free_before_bytes": full.memory_total_bytes - full.memory_used_bytes,
        "held_by_the_suspended_bytes": held,
        "phases": phases,
        "urgent": computed,
        "urgent_began_after_ms": (began.first_ns - began.began_ns) / 1e6,
        "stopped_after_ms": [
            (told.latest_ns - decided[one.name]) / 1e6
            for one, told in zip(lower, stopped, strict=True)
        ],
        "steps_when_stopped": [told.steps for told in stopped],
        "results": done,
        "undisturbed": _undisturbed(pool, STEPS),
    }


def kills(folder: Path, kills: int, seed: int) -> dict:
    """The same again and again, while the manager and an agent are killed at random moments."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    pool = Pool(folder)
    pool.start()
    steps = 300 * kills
    lower = [one.start() for one in _lower(pool, steps)]
    for one in lower:
        one.wait_for_steps(20)
    watcher = Watcher(pool)
    watcher.start()
    urgent_results = []
    killed = {"manager": 0, "agent": 0}
    while sum(killed.values()) < kills:
        name = f"urgent-{len(urgent_results)}"
        urgent = Program(pool, NODE, name, pool.blocks_of(NODE), URGENT_STEPS, 10, seed=9).start()
        for _ in range(2):
            time.sleep(chance.uniform(0.2, 1.5))
            victim = chance.choice(("manager", "agent"))
            daemon = pool.manager if victim == "manager" else pool.agents[NODE]
            daemon.kill()
            killed[victim] += 1
            time.sleep(chance.uniform(0, 0.3))
            daemon.start()
        if urgent.process.wait(120) == 2:  # the agent was away at that moment: its user asks again
            errors = urgent.process.stderr.read()
            assert "no agent runs here" in errors, errors
            urgent.start()
        urgent_results.append(urgent.result())
    done = [one.result(120 + 2 * kills) for one in lower]
    watcher.stop()
    return {
        "killed": killed,
        "faults": watcher.faults,
        "looks": watcher.looks,
        "urgent": urgent_results,
        "results": done,
        "undisturbed": _undisturbed(pool, steps),
    }


def shares(folder: Path, parts: list[int], seconds: float) -> dict:
    """Applications with so many hundredths of a card's blocks each, all backlogged."""
    pool = Pool(folder)
    pool.start()
    blocks = pool.blocks_of(NODE)
    programs = [
        Program(
            pool, NODE, f"part-{n}", round(blocks * part / 100), 10_000_000, hold="", launches=64
        ).start()
        for n, part in enumerate(parts)
    ]
    for one in programs:
        one.wait_for_steps(5)
    machine = pool.machine(NODE)
    before = {r.tag: r for r in machine.record(0)}
    time.sleep(seconds)
    after = {r.tag: r for r in machine.record(0)}
    measured = {
        one.name: 100 * (after[one.name].busy_ns - before[one.name].busy_ns)
        / (after[one.name].at_ns - before[one.name].at_ns)
        for one in programs
    }  # fmt: skip
    return {
        "granted": {one.name: 100 * one.blocks / blocks for one in programs},
        "measured": measured,
    }


def idle(folder: Path) -> dict:
    """Starts everything and stays, for the test that kills its starter."""
    pool = Pool(folder)
    pool.start()
    (folder / "up").touch()
    time.sleep(600)
    return {}


def virtual_card(folder: Path, python: str, steps: int) -> dict:
    """A PyTorch program on cards of two nodes; urgent work takes its own node, and it goes on."""
    pool = Pool(folder, agent_options=(f"--card-python={python}", "--card-user=root"))
    pool.start()
    free = pool.free_blocks()
    blocks = pool.blocks_of(ELSEWHERE) + pool.blocks_of("node-2") // 5  # also without its node
    train = Training(pool, ELSEWHERE, "train", blocks, python, steps).start()
    train.wait_for_steps(3)
    before = pool.nodes_of("train")
    urgent = pool.start_on(
        ELSEWHERE, f"--tflops={pool.blocks_of(ELSEWHERE)}", "--priority=10", "--name=urgent",
        "--", "sleep", "600",
    )  # fmt: skip
    train.wait_for_event("resumed")
    at = train.steps_done()
    train.wait_for_steps(at + 3)
    during = pool.nodes_of("train")
    urgent.terminate()
    urgent.communicate(timeout=60)
    losses = train.result()
    return {
        "before": before,
        "during": during,
        "losses": losses,
        "events": [e["event"] for e in pool.events() if e["application"] == "train"],
        "expected": train.expected(),
        "free_before": free,
        "free_after": pool.free_blocks_when_all_is_over(),
    }


def card_losses(
    folder: Path, *, python: str, moments: int, steps: int, on_first: int, kinds: list[str]
) -> dict:
    """Trainings on the cards of two other nodes, with one fault in each; `on_first`: of node-1."""
    speeds = [*[989] * on_first, 400]  # all blocks of node-1, and some of node-2
    wanted = card_faults.undisturbed(python, speeds, steps)
    pool = Pool(
        folder, {"node-1": f"h200,{on_first}", "node-2": "h100,1", "node-3": "small,1"},
        agent_options=(f"--card-python={python}", "--card-user=root"),
    )  # fmt: skip
    pool.start()
    free = pool.free_blocks()
    found = [
        card_faults.Moment(
            pool, number, "node-3", sum(speeds), python, steps, recovers, kinds
        ).run()
        for recovers in (False, True)
        for number in range(moments if not recovers else (moments + 1) // 2)
    ]
    return {
        "free": free,
        "undisturbed": losses_in(wanted.communicate()[0]),
        "moments": found,
    }


def node_gone(folder: Path, python: str, steps: int) -> dict:
    """A node with a card of a training job dies and does not come back."""
    pool = Pool(
        folder, {"node-1": "h200,1", "node-2": "h200,1", "node-4": "small,1"},
        options=("--min-run=0s", "--node-timeout=5s"),
        agent_options=(f"--card-python={python}", "--card-user=root"),
    )  # fmt: skip
    pool.start()
    train = pool.penstock_on(
        "node-4", "train", "run", "--name=job", f"--tflops={pool.blocks_of('node-1')}",
        "--restarts=1", "--", python, str(PROGRAM), "--double", f"--steps={steps}",
    )  # fmt: skip
    (before,) = _nodes_with_cards(pool, train, 1)
    pool.agents[before].kill()
    lost = pool.card_pids(before, application_name("default", "job", 1))
    os.kill(lost[0], signal.SIGKILL)  # another one stands by, which no agent ends
    after = _nodes_with_cards(pool, train, 2)
    out, errors = train.communicate(timeout=WITHIN_S)
    told = (folder / "runs/default/job/events.jsonl").read_text().splitlines()
    return {
        "code": train.returncode, "losses": losses_in(out), "said": out + errors,
        "before": before, "after": after, "told": [json.loads(one) for one in told],
        "expected": Training(pool, "node-4", "", 0, python, steps).expected(),
    }  # fmt: skip


def _nodes_with_cards(pool: Pool, train: subprocess.Popen[str], attempt: int) -> list[str]:
    """The nodes of a training job's application, once its cards run there."""
    name = application_name("default", "job", attempt)
    until = time.monotonic() + WITHIN_S
    while True:
        nodes = pool.nodes_of(name)
        if nodes and all(pool.card_pids(node, name) for node in nodes):
            return nodes
        assert train.poll() is None, train.communicate()
        assert time.monotonic() < until, pool.state()
        time.sleep(LOOKS_S)


def card_moves(folder: Path, python: str, steps: int) -> dict:
    """A training is moved to another node by compaction, then shrinks, then grows."""
    speeds = [989, 200]  # all blocks of a node, and some of the next
    wanted = card_faults.undisturbed(python, speeds, steps)
    pool = Pool(
        folder, {"node-1": "h200,1", "node-2": "h100,1", "node-3": "h100,1", "node-4": "small,1"},
        agent_options=(f"--card-python={python}", "--card-user=root"),
    )  # fmt: skip
    pool.start()
    free = pool.free_blocks()
    first = pool.start_on("node-1", f"--tflops={speeds[0]}", "--name=first", "--", "sleep", "600")
    pool.wait_for_phase("first", "running")
    train = Training(pool, "node-4", "train", sum(speeds), python, steps).start()
    train.wait_for_cards("node-2", "node-3")
    first.terminate()
    first.communicate(timeout=60)
    told = json.loads(pool.manage("compact", "--full", "--yes", "-o", "json"))
    train.wait_for_cards("node-1", "node-2")
    emptied = pool.free_blocks_of("node-3") == pool.blocks_of("node-3")
    pool.manage("resize", "train", "--tflops=400")
    train.wait_for_cards("node-1")
    pool.manage("resize", "train", f"--tflops={400 + speeds[0]}")
    train.wait_for_cards("node-1", "node-2")
    return {
        "moves": told["moves"],
        "left_out": told["left_out"],
        "emptied": emptied,
        "losses": train.result(),
        "undisturbed": losses_in(wanted.communicate()[0]),
        "events": [e["event"] for e in pool.events() if e["application"] == "train"],
        "free_before": free,
        "free_after": pool.free_blocks_when_all_is_over(),
    }
