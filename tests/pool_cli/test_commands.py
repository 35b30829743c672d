"""`penstock pool` in real processes: tables, JSON, bad input, broken pipes, confirmation."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import subprocess

import pytest
from tests.pool_cli.support.unkind_pool import pool_of, waiting

from penstock_api.v1 import pool_pb2


@pytest.fixture
def full(pool):
    """A pool of two nodes with an application, one that waits, and one that is suspended."""
    pool.state = pool_of(2, 2, 20, [("train", 1, 30), ("serve", 41, 45)])
    pool.state.longest_run = 35
    pool.state.applications.append(waiting("eager", 50, place=1).application)
    pool.state.applications[-1].reason = "50 blocks are asked for, and 45 are free"
    pool.state.applications[-1].priority = 10
    one = pool.state.applications.add(name="calm", phase="suspended", asked_blocks=20, place=2)
    one.host_bytes = 3 << 30
    one.suspended_for.FromNanoseconds(1_500_000_000)
    return pool


def data_of(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_status_shows_nodes_applications_and_the_queue_with_its_reasons(penstock_pool, full):
    done = penstock_pool("status")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "80 blocks: 45 free (56 %), the longest free run 35" in text
    assert "1 waiting for 50 blocks, 1 suspended with 20" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["node-0", "there", "1-40", "40", "10", "2x", "H200", "-"] in lines
    assert any(line[:1] == ["train"] and "1-30" in line for line in lines)
    assert any(line[:2] == ["1", "eager"] for line in lines)
    assert "50 blocks are asked for, and 45 are free" in text
    assert any(line[:2] == ["2", "calm"] and "3Gi" in line for line in lines)
    assert "\x1b" not in text


def test_status_in_json_names_units_and_is_the_whole_state(penstock_pool, full):
    data = data_of(penstock_pool("status", "-o", "json"))
    assert data["free_blocks"] == 45
    assert data["nodes"][0]["cards"][0]["memory_bytes"] == 140 << 30
    by_name = {one["name"]: one for one in data["applications"]}
    assert by_name["train"]["runs"] == [{"first": 1, "last": 30}]
    assert by_name["calm"]["suspended_seconds"] == 1.5
    assert by_name["calm"]["host_bytes"] == 3 << 30
    assert by_name["eager"]["place"] == 1


def test_status_of_a_node_shows_what_has_to_do_with_it(penstock_pool, full):
    data = data_of(penstock_pool("status", "--node", "node-1", "-o", "json"))
    assert [one["name"] for one in data["nodes"]] == ["node-1"]
    assert [one["name"] for one in data["applications"]] == ["serve"]
    done = penstock_pool("status", "--node", "node-11")
    assert done.returncode == 2
    assert "the pool has no node 'node-11'" in done.stderr
    assert "its nodes are node-0, node-1" in done.stderr


def test_the_map_shows_each_block_of_each_card_without_colour(penstock_pool, full):
    done = penstock_pool("map")
    assert done.returncode == 0, done.stderr
    rows = {line.split("|")[0].strip(): line for line in done.stdout.splitlines() if "|" in line}
    assert rows["node-0 0"].split("|")[1] == "A" * 20
    assert rows["node-0 1"].split("|")[1] == "A" * 10 + "." * 10
    assert rows["node-1 0"].split("|")[1] == "B" * 5 + "." * 15
    assert rows["node-1 1"].endswith("0/20")
    assert "A train: 30 blocks (1-30), priority 0" in done.stdout
    assert "\x1b" not in done.stdout


def test_why_says_the_reason_and_what_would_help(penstock_pool, pool):
    pool.answer = pool_pb2.WhyResponse(
        reason="50 blocks are asked for, and 45 are free",
        helps=["ask for at most 45", "wait for train to end"],
        place=1,
    )
    pool.answer.application.CopyFrom(waiting("eager", 50).application)
    done = penstock_pool("why", "eager")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "application eager is waiting, place 1 in the queue: 50 blocks",
        "50 blocks are asked for, and 45 are free",
        "what would help:",
        "- ask for at most 45",
        "- wait for train to end",
    ]
    data = data_of(penstock_pool("why", "eager", "-o", "json"))
    assert data["helps"] == ["ask for at most 45", "wait for train to end"]


def test_why_of_a_claim_claims_nothing(penstock_pool, pool):
    pool.answer = pool_pb2.WhyResponse(reason="it would be granted at once")
    done = penstock_pool("why", "--tflops", "49.5", "--priority", "3", "--kind", "GPU")
    assert done.stdout == "it would be granted at once\n", done.stderr
    (request,) = pool.called("Why")
    assert (request.claim.blocks, request.claim.priority, request.claim.kind) == (50, 3, "gpu")
    assert not pool.called("Acquire")


def test_events_come_as_lines_of_json_until_the_reader_goes(penstock_pool, pool):
    event = pool_pb2.PoolEvent(event="suspended", application="calm", number=7, reason="for eager")
    event.details = '{"blocks": 20}'
    pool.events = [event]
    process = penstock_pool.start("watch", "--json")
    data = json.loads(process.stdout.readline())
    assert data["event"] == "suspended"
    assert data["details"] == {"blocks": 20}
    pool.events.append(pool_pb2.PoolEvent(event="resumed", application="calm", number=8))
    assert json.loads(process.stdout.readline())["number"] == 8
    process.stdout.close()
    pool.events.append(pool_pb2.PoolEvent(event="moved", application="calm", number=9))
    assert process.wait(30) != 0
    assert process.stderr.read() == ""
    done = penstock_pool("watch", "--no-follow")
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        "suspended",
        "resumed",
        "moved",
    ]


def test_resize_says_which_blocks_the_application_has_now(penstock_pool, pool):
    done = penstock_pool("resize", "train", "--tflops", "20")
    assert done.stdout == "application train has 20 blocks: 1-20\n", done.stderr
    assert data_of(penstock_pool("resize", "train", "--tflops=20", "-o", "json"))["blocks"] == 20


def test_release_tries_every_name_and_fails_if_one_failed(penstock_pool, pool):
    done = penstock_pool("release", "one", "two", "--grace", "0", "--reason", "enough")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "application one is released",
        "application two is released",
    ]
    assert {one.reason for one in pool.called("Release")} == {"enough"}
    pool.refusals["Release"] = (
        "no-such-tenant",
        "no application 'x'",
        "it has ended",
        "see status",
    )
    done = penstock_pool("release", "x", "y", "-o", "json")
    assert done.returncode == 2
    assert [one["released"] for one in json.loads(done.stdout)] == [False, False]
    assert done.stderr.count("no application 'x': it has ended; see status") == 2


@pytest.fixture
def plan(pool):
    move = pool_pb2.PoolMove(application="train", moved_bytes=8 << 30)
    move.source.add(first=7, last=8)
    move.target.add(first=1, last=2)
    move.cost.FromNanoseconds(2_500_000_000)
    pool.plan = [move]
    done = pool_pb2.PoolMove()
    done.CopyFrom(move)
    done.took.FromNanoseconds(2_000_000_000)
    pool.moves = [done]
    return pool


def test_compact_shows_the_plan_with_its_cost_and_each_move(penstock_pool, plan):
    done = penstock_pool("compact", "-y")
    assert done.returncode == 0, done.stderr
    assert "1 move: 8Gi copied; applications stand still for 2.5s in all" in done.stdout
    assert done.stdout.splitlines()[-1] == "train: 7-8 -> 1-2, stood still for 2s"
    data = data_of(penstock_pool("compact", "--full", "-y", "-o", "json"))
    assert data["plan"][0]["cost_seconds"] == 2.5
    assert data["moves"][0]["took_seconds"] == 2.0
    assert [one.full for one in plan.called("Compact")] == [False, False, True, True]


def test_a_dry_run_moves_nothing(penstock_pool, plan):
    assert penstock_pool("compact", "--dry-run").returncode == 0
    assert [one.dry_run for one in plan.called("Compact")] == [True]


def test_compact_asks_before_applications_stand_still(penstock_pool, plan):
    done = penstock_pool("compact")
    assert done.returncode == 2
    assert "add --yes" in done.stderr
    assert all(one.dry_run for one in plan.called("Compact"))
    for answer, code in (("n", 2), ("y", 0)):
        ours, theirs = pty.openpty()
        process = penstock_pool.start("compact", stdin=theirs)
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        assert process.wait(60) == code, process.stderr.read()
        os.close(ours)
    assert sum(not one.dry_run for one in plan.called("Compact")) == 1


def test_a_move_that_failed_makes_compact_fail_with_the_reason(penstock_pool, plan):
    plan.moves[0].failure = "it uses managed memory"
    done = penstock_pool("compact", "-y")
    assert done.returncode == 2
    assert "train: not moved: it uses managed memory" in done.stdout


def test_moves_that_cannot_be_made_are_named_with_the_reason(penstock_pool, plan):
    plan.left_out = [pool_pb2.PoolMove(application="far", failure="it stays on its node")]
    done = penstock_pool("compact", "--dry-run")
    assert "far: not in the plan: it stays on its node" in done.stdout
    assert data_of(penstock_pool("compact", "--dry-run", "-o", "json"))["left_out"][0]["failure"]
    plan.plan = []
    assert "nothing to move: no other move gains" in penstock_pool("compact", "--dry-run").stdout


def test_a_plan_that_is_as_long_as_it_may_be_says_that_there_is_more(penstock_pool, plan):
    plan.is_partial = True
    done = penstock_pool("compact", "--full", "-y")
    assert done.stdout.splitlines()[-1] == "there is more to move: repeat the command"
    assert data_of(penstock_pool("compact", "--full", "-y", "-o", "json"))["is_partial"] is True


def test_moves_that_cost_nothing_need_no_confirmation(penstock_pool, plan):
    plan.plan[0].cost.FromNanoseconds(0)
    assert penstock_pool("compact").returncode == 0
    plan.plan = []
    assert penstock_pool("compact").stdout == "nothing to move: no move gains more than it costs\n"


def test_drain_says_what_is_left_and_asks_before_it_ends_applications(penstock_pool, full):
    done = penstock_pool("drain", "node-0")
    assert done.stdout == (
        "node node-0 is draining: nothing new is placed there; 6 of its blocks are still held\n"
    )
    assert penstock_pool("drain", "node-0", "--stop").stdout == "node node-0 is there\n"
    done = penstock_pool("drain", "node-0", "--now")
    assert done.returncode == 2
    assert "End 1 application on node-0?" in done.stderr
    assert len(full.called("Drain")) == 2
    assert penstock_pool("drain", "node-0", "--now", "-y").returncode == 0
    assert full.called("Drain")[-1].now


NONSENSE = [
    (["--tflops", ""], "--tflops is missing or empty; add --tflops N"),
    ([], "--tflops is missing or empty"),
    (["--tflops", "0"], "it is not above 0"),
    (["--tflops", "-5"], "it is not above 0"),
    (["--tflops", "50T"], "write it without a unit: 50"),
    (["--tflops", "fifty"], "it is not a number; write it like 50"),
    (["--tflops", "nan"], "it is not a number"),
    (["--tflops", "inf"], "it is not a number"),
    (["--tflops", "1e30"], "no pool has more than"),
    (["--tflops", "9" * 5000], "no pool has more than"),
    (["--tflops", "5", "--priority", "high"], "it is not a whole number"),
    (["--tflops", "5", "--priority", "1.5"], "it is not a whole number"),
    (["--tflops", "5", "--priority", "9" * 19], "it does not fit into 64 bits"),
    (["--tflops", "5", "--wait", "5"], "did you mean 5s?"),
    (["--tflops", "5", "--wait", "-5m"], "is not a time"),
    (["--tflops", "5", "--wait", "5 minutes"], "unknown unit 'minutes'"),
    (["--tflops", "5", "--wait", "99999h"], "it is longer than a year"),
    (["--tflops", "5", "--memory", "40GB"], "did you mean 40G?"),
    (["--tflops", "5", "--memory", "0"], "must be above 0"),
    (["--tflops", "5", "--memory", "-1Gi"], "must be above 0"),
    (["--tflops", "5", "--kind", "G P U"], "it is not a word"),
    (["--tflops", "5", "--span", "rack"], "it is not card, node or pool"),
    (["--tflops", "5", "--span", "Node"], "did you mean node?"),
    (["--tflops", "5", "--name", "a b"], "application name 'a b' is not usable"),
    (["--tflops", "5", "--name", "x" * 64], "is not usable"),
    (["--tflops", "5", "--node", ""], "the node's name is empty"),
    (["--tflops", "5", "--node", "a", "--anywhere"], "contradict each other"),
    (["--tflops", "5", "--pool", "x:1", "--", "true"], "--pool cannot be given with a command"),
    (["--tflops", "5", "--anywhere", "--", "true"], "--anywhere cannot be given with a command"),
    (["--tflops", "5", "--", ""], "the command's name is empty"),
]


def test_a_senseless_claim_is_refused_before_anything_is_sent(penstock_pool, pool):
    answers = penstock_pool.many([["acquire", *options] for options, _ in NONSENSE])
    for (options, message), (code, said) in zip(NONSENSE, answers, strict=True):
        assert code == 2, (options, said)
        assert message in said, options
        assert said.count("\n") == 1
        assert len(said) < 500
    assert not pool.calls


SENSELESS_ORDERS = [
    (["release", "a/b"], "application name 'a/b' is not usable"),
    (["release", "one", "--grace", "ten"], "is not a time"),
    (["release", "one", "--grace", "1000h"], "grace"),
    (["resize", "one", "--tflops", "0"], "penstock pool release gives everything back"),
    (["why"], "give either a NAME or --tflops N"),
    (["why", "one", "--tflops", "5"], "give either a NAME or --tflops N"),
    (["why", "--tflops", "x"], "it is not a number"),
    (["drain", "n", "--stop", "--now"], "contradict each other"),
    (["drain", ""], "the node's name is empty"),
    (["watch", "a b"], "is not usable"),
    (["map", "--node", "nowhere"], "the pool has no node 'nowhere'"),
    (["status", "-o", "xml"], "'xml' is not table or json or yaml"),
]


def test_senseless_orders_are_refused_with_what_to_do(penstock_pool, pool):
    answers = penstock_pool.many([order for order, _ in SENSELESS_ORDERS])
    for (order, message), (code, said) in zip(SENSELESS_ORDERS, answers, strict=True):
        assert code == 2, (order, said)
        assert message in " ".join(said.split()), order
    assert {name for name, _ in pool.calls} <= {"GetPool"}


def test_a_full_disk_and_a_closed_pipe_end_a_command_without_a_traceback(penstock_pool, full):
    with pathlib.Path("/dev/full").open("w") as out:
        done = penstock_pool("status", stdout=out, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    done = penstock_pool("status", "-o", "json", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert done.returncode != 0
    assert done.stderr == ""


def test_an_error_of_the_manager_is_shown_as_it_is(penstock_pool, pool):
    pool.refusals["GetPool"] = ("not-allowed", "bob may not see this", "bob is a guest", "ask root")
    done = penstock_pool("status")
    assert done.returncode == 2
    assert done.stderr == "penstock: bob may not see this: bob is a guest; ask root\n"


def test_a_manager_that_hangs_is_given_up(penstock_pool, pool):
    pool.delay_s = 15
    done = penstock_pool("status")
    assert done.returncode == 2
    assert "did not respond in time: it is busy or stopped, or it hangs" in done.stderr


def test_names_from_elsewhere_cannot_move_the_cursor(penstock_pool, pool):
    pool.state = pool_of(1, 1, 4, [("train", 1, 2)])
    pool.state.nodes[0].finding = "\x1b[2Jgone [red]"
    pool.state.applications[0].owner = "eve\x1b[1A"
    for command in ("status", "map"):
        done = penstock_pool(command)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
    assert "[red]" in penstock_pool("status").stdout


def test_ten_thousand_nodes_are_shown_in_a_map_that_fits_a_screen(penstock_pool, pool):
    pool.state = pool_of(10_000, 1, 100)
    for node in pool.state.nodes[:500]:
        node.free_blocks = 0
    pool.state.nodes[700].state = "away"
    done = penstock_pool("map")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < 120
    assert "10000 nodes: 9500 empty, 500 full" in done.stdout
    assert sum(line.count("#") for line in lines if line.startswith("node-")) == 500
    assert sum(line.count("?") for line in lines if line.startswith("node-")) == 1
    done = penstock_pool("map", "--node", "node-9999")
    assert [line for line in done.stdout.splitlines() if line.startswith("node-9999 0 |")]


def test_a_held_claim_says_what_it_has_and_how_to_give_it_back(penstock_pool, pool):
    done = penstock_pool("acquire", "--tflops", "50", "--name", "mine", "--elastic")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("application mine: 50 blocks (1-50)\n")
    assert done.stdout.endswith("give them back with: penstock pool release mine\n")
    (request,) = pool.called("Acquire")
    assert (request.lifetime, request.mode) == (1, 2)  # until revoked, elastic
    data = data_of(penstock_pool("acquire", "--tflops", "50", "-o", "json"))
    assert data["parts"][0]["memory_bytes"] == 50 << 30
    assert data["environment"] == {}
