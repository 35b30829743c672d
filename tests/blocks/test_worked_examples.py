"""The worked examples of the pool's specification, figure by figure."""

from __future__ import annotations

from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool
from penstock.scheduling.blocks.run import Run

GIB = 1 << 30
NODES = (
    ("node0", (("gpu", 9, 9), ("npu", 20), ("fpga", 25))),
    ("node1", (("gpu", 10, 10), ("npu", 18, 18))),
    ("node2", (("npu", 3), ("fpga", 8, 8, 7))),
    ("node3", (("gpu", 14, 14), ("npu", 15), ("fpga", 12))),
)


def cards(name: str, kinds) -> list[Card]:
    return [
        Card(f"{name}-{kind}{at}", kind, tflops, tflops * GIB, frees_memory=True)
        for kind, *figures in reversed(kinds)  # in whatever order a node lists them
        for at, tflops in enumerate(figures)
    ]


def four_nodes() -> Pool:
    pool = Pool()
    for name, kinds in NODES:
        pool.join(name, cards(name, kinds), 0)
    return pool


def test_four_nodes_of_two_hundred_tflops_are_numbered_by_node_and_then_by_kind():
    ranges = [node.numbers for node in four_nodes().space.nodes]
    assert [(one.first, one.last) for one in ranges] == [(1, 63), (64, 119), (120, 145), (146, 200)]
    assert [{kind: str(zone) for kind, zone in one.zones.items()} for one in ranges] == [
        {"gpu": "1-18", "npu": "19-38", "fpga": "39-63"},
        {"gpu": "64-83", "npu": "84-119"},
        {"npu": "120-122", "fpga": "123-145"},
        {"gpu": "146-173", "npu": "174-188", "fpga": "189-200"},
    ]
    assert four_nodes().space.free[""] == 200


def test_a_card_of_fifty_tflops_has_blocks_1_to_50_of_the_first_node_and_drives_all_its_kinds():
    pool = four_nodes()
    decision = pool.acquire("app", Claim(50), 0)
    assert decision.outcome == "granted"
    assert decision.actions[0].runs == (Run(1, 50),)
    driven: dict[str, int] = {}
    for numbers, part in pool.space.parts((Run(1, 50),)):
        assert numbers.name == "node0"
        driven[part.card.kind] = driven.get(part.card.kind, 0) + part.blocks
    assert driven == {"gpu": 18, "npu": 20, "fpga": 12}


def test_a_claim_above_the_total_is_refused_and_an_urgent_one_suspends_less_urgent_work():
    pool = four_nodes()
    never = pool.acquire("huge", Claim(201, priority=9), 0, wait=True)
    assert (never.outcome, never.reason) == ("refused", "it asks for 201 blocks of 200 in all")
    pool.acquire("one", Claim(120, priority=1), 0)
    pool.acquire("two", Claim(60, priority=1), 0)
    assert pool.acquire("equal", Claim(30, priority=1), 0).outcome == "refused"
    urgent = pool.acquire("urgent", Claim(30, priority=2), 0)
    assert urgent.outcome == "starting"
    assert [(action.what, action.name) for action in urgent.actions] == [("suspend", "two")]
    started = pool.suspended("two", 1)
    assert [(action.what, action.name) for action in started] == [("start", "urgent")]
    assert pool.space.free[""] == 50, "a suspended application gives back all its blocks"
    resumed = pool.release("urgent", 2)
    assert [(action.what, action.name) for action in resumed] == [("resume", "two")]


def ten_single_cards() -> Pool:
    pool = Pool()
    pool.join("node", [Card(f"card{at}", "gpu", 1, GIB, frees_memory=True) for at in range(10)], 0)
    for name, blocks in (("app1", 3), ("app2", 3), ("app3", 2)):
        pool.acquire(name, Claim(blocks), 0)
    pool.release("app1", 1)
    return pool


def test_applications_lie_as_in_the_example_of_compaction():
    pool = ten_single_cards()
    assert pool.applications["app2"].runs == (Run(4, 6),)
    assert pool.applications["app3"].runs == (Run(7, 8),)
    assert list(pool.space.nodes[0].runs()) == [Run(1, 3), Run(9, 10)]


def test_compacting_all_moves_app2_to_1_to_3_and_app3_to_4_to_5_and_app4_gets_6_to_9():
    pool = ten_single_cards()
    plan = pool.compact(every=True)
    assert [(move.name, move.target) for move in plan.moves] == [
        ("app2", (Run(1, 3),)),
        ("app3", (Run(4, 5),)),
    ]
    for move in plan.moves:
        assert pool.begin(move, 2)
        pool.moved(move.name, 3)
    assert pool.acquire("app4", Claim(4), 4).actions[0].runs == (Run(6, 9),)
    assert list(pool.space.nodes[0].runs()) == [Run(10, 10)]


def test_the_cheaper_plan_moves_app3_to_1_to_2_and_app4_gets_7_to_10():
    pool = ten_single_cards()
    plan = pool.room(Claim(4))
    assert [(move.name, move.target) for move in plan.moves] == [("app3", (Run(1, 2),))]
    assert plan.room == (Run(7, 10),)
    assert plan.cost_s < pool.compact(every=True).cost_s
    assert pool.begin(plan.moves[0], 2)
    pool.moved("app3", 3)
    assert pool.acquire("app4", Claim(4), 4).actions[0].runs == (Run(7, 10),)
    assert list(pool.space.nodes[0].runs()) == [Run(3, 3)]


def test_moves_inside_one_device_are_renumbering_and_cost_nothing():
    pool = Pool()
    pool.join("node", [Card("card", "gpu", 10, GIB)], 0)
    for name, blocks in (("app1", 3), ("app2", 3)):
        pool.acquire(name, Claim(blocks), 0)
    pool.release("app1", 1)
    plan = pool.compact(every=True)
    assert (plan.cost_s, plan.moves[0].moved_bytes) == (0, 0)
    assert pool.begin(plan.moves[0], 2)
    assert pool.applications["app2"].phase == "running"
    assert pool.applications["app2"].runs == (Run(1, 3),)


def test_an_urgent_application_starts_when_all_that_it_makes_suspend_have_done_so():
    pool = ten_single_cards()
    pool.acquire("app4", Claim(5), 2)
    urgent = pool.acquire("urgent", Claim(8, priority=1), 3)
    assert urgent.outcome == "starting"
    names = [action.name for action in urgent.actions]
    assert len(names) == 2
    assert pool.suspended(names[0], 4) == []
    assert pool.suspended(names[1], 5)[0].name == "urgent"
