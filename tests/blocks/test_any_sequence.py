"""Whatever is asked in whatever order: no block twice, sums exact, priorities respected."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.placement import place
from penstock.scheduling.blocks.pool import Pool
from penstock.scheduling.blocks.rules import Rules

if TYPE_CHECKING:
    from penstock.scheduling.blocks.application import Application
    from penstock.scheduling.blocks.run import Run
    from penstock.scheduling.blocks.space import Closed

GIB = 1 << 30
CARDS = st.lists(
    st.builds(
        Card,
        uuid=st.uuids().map(str),
        kind=st.sampled_from(["gpu", "npu", "fpga", "tpu"]),
        tflops=st.sampled_from([0.5, 1, 3, 7.9, 20, 240]),
        memory_bytes=st.sampled_from([0, GIB, 16 * GIB]),
        model=st.sampled_from(["a", "b"]),
        frees_memory=st.booleans() | st.just(True),
    ),
    max_size=4,
)
CLAIMS = st.builds(
    Claim,
    blocks=st.integers(1, 40),
    priority=st.integers(0, 3),
    memory_bytes=st.none() | st.integers(0, 20 * GIB),
    kind=st.sampled_from(["", "", "", "gpu", "npu"]),
    span=st.sampled_from(["pool", "pool", "node", "card"]),
    node=st.sampled_from(["", "", "", "node0", "node1", "node2"]),
)
RULES = Rules(min_run_ns=5, ageing_ns=10, patience_ns=20)


class PoolMachine(RuleBasedStateMachine):
    """A pool and what a careless manager asks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(RULES)
        self.now = 0
        self.count = 0
        self.nodes: list[str] = []
        self.closed: set[tuple[str, Closed]] = set()  # nodes that take nothing new, and why
        self.were_closed: set[str] = set()  # at the last look
        self.before: dict[str, set[int]] = {}  # and which numbers of theirs each had
        self.joined: list[tuple[str, list[Card]]] = []
        self.kept: dict[str, Application] = {}  # what a manager has written

    def check_actions(self, actions) -> None:
        """Nothing starts, or is resumed, while a block of it is another's."""
        for action in actions:
            one = self.pool.applications[action.name]
            expected = {"start": "running", "resume": "running", "suspend": "suspending",
                        "end": "lost"}  # fmt: skip
            assert one.phase == expected[action.what]
            if action.what in {"start", "resume"}:
                assert one.runs == action.runs
                assert one.blocks >= one.claim.blocks
                for other in self.pool.applications.values():
                    assert other is one or not overlap(one.runs, other.runs), (one, other)

    def named(self, data, *phases: str) -> str:
        names = [one.name for one in self.pool.applications.values() if one.phase in phases]
        return data.draw(st.sampled_from(names))

    def has(self, *phases: str) -> bool:
        return any(one.phase in phases for one in self.pool.applications.values())

    @initialize(cards=CARDS)
    def first_node(self, cards) -> None:
        self.join(cards)

    @rule(cards=CARDS)
    def join(self, cards) -> None:
        name = f"node{len(self.pool.space.nodes)}"
        numbers, actions = self.pool.join(name, cards, self.now)
        assert numbers.last - numbers.first + 1 == sum(card.blocks for card in cards)
        self.nodes.append(name)
        self.joined.append((name, cards))
        self.check_actions(actions)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def leave(self, data) -> None:
        name = data.draw(st.sampled_from(self.nodes))
        self.nodes.remove(name)
        self.closed -= {(name, "drains"), (name, "is away")}
        self.check_actions(self.pool.leave(name, self.now))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), why=st.sampled_from(["drains", "is away"]))
    def close(self, data, why) -> None:
        name = data.draw(st.sampled_from(self.nodes))
        self.closed.add((name, why))
        self.check_actions(self.pool.close([name], why, self.now))

    @precondition(lambda self: self.closed)
    @rule(data=st.data())
    def open(self, data) -> None:
        name, why = data.draw(st.sampled_from(sorted(self.closed)))
        self.closed.discard((name, why))
        self.check_actions(self.pool.open([name], why, self.now))

    @rule(claim=CLAIMS, wait=st.booleans())
    def acquire(self, claim, wait) -> None:
        self.count += 1
        name = f"app{self.count}"
        decision = self.pool.acquire(name, claim, self.now, wait=wait)
        assert (decision.outcome == "refused") == (name not in self.pool.applications)
        if decision.outcome == "starting":
            for action in decision.actions:
                victim = self.pool.applications[action.name]
                assert victim.claim.priority < claim.priority
                assert victim.frees_memory
                assert victim.safe_until_ns <= self.now
        self.check_actions(decision.actions)

    @precondition(lambda self: self.pool.applications)
    @rule(data=st.data())
    def release(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.pool.applications)))
        self.check_actions(self.pool.release(name, self.now))

    @precondition(lambda self: self.has("suspending"))
    @rule(data=st.data(), works=st.booleans() | st.just(True))
    def report(self, data, works) -> None:
        name = self.named(data, "suspending")
        report = self.pool.suspended if works else self.pool.not_suspended
        self.check_actions(report(name, self.now))

    @precondition(lambda self: self.has("running"))
    @rule(data=st.data(), blocks=st.integers(1, 60))
    def resize(self, data, blocks) -> None:
        name = self.named(data, "running")
        one = self.pool.applications[name]
        before = one.runs
        try:
            runs, actions = self.pool.resize(name, blocks, self.now)
        except ValueError:
            assert self.pool.applications[name].runs == before
        else:
            assert sum(run.blocks for run in runs) >= blocks
            if one.claim.span != "pool":  # a process cannot get another card
                assert self.cards(runs) <= self.cards(before)
            self.check_actions(actions)

    @precondition(lambda self: self.has("running"))
    @rule(data=st.data(), every=st.booleans(), claim=CLAIMS)
    def compact(self, data, every, claim) -> None:
        plan = data.draw(st.sampled_from([self.pool.compact(every=every), self.pool.room(claim)]))
        for move in plan.moves if plan else ():
            if not self.pool.begin(move, self.now):
                break
            one = self.pool.applications[move.name]
            assert one.blocks >= one.claim.blocks
            if move.moved_bytes and data.draw(st.booleans()):
                report = data.draw(st.sampled_from([self.pool.moved, self.pool.not_moved]))
                self.check_actions(report(move.name, self.now))

    @precondition(lambda self: self.has("moving"))
    @rule(data=st.data())
    def report_move(self, data) -> None:
        report = data.draw(st.sampled_from([self.pool.moved, self.pool.not_moved]))
        self.check_actions(report(self.named(data, "moving"), self.now))

    @rule()
    def restart(self) -> None:
        """The manager is killed: another one has only what was written."""
        before = self.pool
        nodes = [(name, cards, name in self.nodes) for name, cards in self.joined]
        kept = copy.deepcopy(list(self.kept.values()))
        self.pool = Pool.restored(RULES, nodes, kept, sorted(self.closed))
        assert before.space.free == self.pool.space.free
        for one, other in zip(before.space.nodes, self.pool.space.nodes, strict=True):
            assert (one is None) == (other is None)
            if one and other:
                assert list(one.runs()) == list(other.runs())
                assert one.memory_bytes == other.memory_bytes
        assert list(before.queue) == list(self.pool.queue)
        assert before.applications == self.pool.applications
        for priority in range(4):
            held = [each._candidates.held_below(priority, self.now) for each in (before, self.pool)]
            assert held[0] == held[1]

    @rule(passed=st.integers(1, 30))
    def later(self, passed) -> None:
        self.now += passed
        self.check_actions(self.pool.settle(self.now))

    def cards(self, runs) -> set[tuple[str, int]]:
        return {(numbers.name, part.at) for numbers, part in self.pool.space.parts(runs)}

    def closed_nodes(self) -> set[str]:
        return {name for name, _ in self.closed}

    def numbers_on_closed(self, one) -> set[int]:
        return {
            number
            for run in (*one.runs, *one.source)
            for number in range(run.first, run.last + 1)
            if (node := self.pool.node_of(number)) is not None and node.name in self.closed_nodes()
        }

    def takes_work(self):
        return [node for node in self.pool.space.nodes
                if node and node.numbers.name not in self.closed_nodes()]  # fmt: skip

    def held(self) -> list[tuple[str, Run]]:
        """What nobody else may have: of those that run, start or still suspend."""
        pool = self.pool
        return [
            (one.name, run)
            for one in pool.applications.values()
            for run in kept_by(one)
            if pool.node_of(run.first) is not None
        ]

    @invariant()
    def what_a_manager_writes_is_what_is_there(self) -> None:
        for name in self.pool.changed:
            self.kept.pop(name, None)
            if name in self.pool.applications:
                self.kept[name] = copy.deepcopy(self.pool.applications[name])
        self.pool.changed.clear()
        assert self.kept == self.pool.applications

    @invariant()
    def no_block_is_held_twice_and_all_are_free_or_held(self) -> None:
        free = [run for node in self.pool.space.nodes if node for run in node.runs()]
        blocks = sorted([*free, *(run for _, run in self.held())])
        for one, following in pairwise(blocks):
            assert one.last < following.first, (one, following)
        assert sum(run.blocks for run in blocks) == self.pool.space.size[""]
        free = [run for node in self.takes_work() for run in node.runs()]
        assert sum(run.blocks for run in free) == self.pool.space.free[""]

    @invariant()
    def what_is_held_does_not_depend_on_which_nodes_are_closed(self) -> None:
        held = sum(run.blocks for _, run in self.held() if self.pool.node_of(run.first) is not None)
        assert self.pool.space.held == held

    @invariant()
    def zones_and_indexes_tell_what_is_there(self) -> None:
        space = self.pool.space
        for kind in space.size:
            runs = [list(node.runs(kind)) for node in self.takes_work()]
            assert space.free[kind] == sum(run.blocks for each in runs for run in each)
            longest = max((run.blocks for each in runs for run in each), default=0)
            assert space.longest(kind) == longest
        for node in space.nodes:
            if node:
                zones = sorted(node.numbers.zones.values())
                for one, following in pairwise(zones):
                    assert one.last + 1 == following.first

    @invariant()
    def no_card_is_given_more_memory_or_time_than_it_has(self) -> None:
        for node in self.pool.space.nodes:
            for card, left in (
                zip(node.numbers.cards, node.memory_bytes, strict=True) if node else ()
            ):
                assert 0 <= left <= card.memory_bytes
        used: dict[str, int] = {}
        for _, run in self.held():
            for numbers, part in self.pool.space.parts([run]):
                key = f"{numbers.name}/{part.at}"
                used[key] = used.get(key, 0) + part.cores_permille
        assert all(permille <= 1000 for permille in used.values())

    @invariant()
    def processes_stay_on_one_node_and_cards_are_of_the_kind_that_was_asked_for(self) -> None:
        for one in self.pool.applications.values():
            if one.phase == "lost":
                continue
            parts = [(numbers.name, part) for numbers, part in self.pool.space.parts(one.runs)]
            if one.claim.span != "pool":
                assert len({name for name, _ in parts}) <= 1
            if one.claim.node:
                assert {name for name, _ in parts} <= {one.claim.node}
            if one.claim.span == "card" and one.phase == "running":
                assert len({(name, part.at) for name, part in parts}) == 1
            assert not one.claim.kind or all(part.card.kind == one.claim.kind for _, part in parts)

    @invariant()
    def nobody_gets_a_block_of_a_closed_node(self) -> None:
        now = {one.name: self.numbers_on_closed(one) for one in self.pool.applications.values()}
        if self.closed_nodes() == self.were_closed:
            for name, numbers in now.items():
                assert numbers <= self.before.get(name, set()), name
        self.before, self.were_closed = now, self.closed_nodes()

    @invariant()
    def a_claim_is_refused_for_good_only_if_an_empty_pool_has_no_room_for_it(self) -> None:
        draining = {name for name, why in self.closed if why == "drains"}
        open_again = Pool(RULES)
        for name, cards in self.joined:
            if name in self.nodes:
                open_again.join(name, cards, 0)
                if name in draining:
                    open_again.close([name], "drains", 0)
        for claim in (Claim(7, memory_bytes=9 * GIB, span="card"), Claim(30, kind="npu")):
            has_room = place(open_again.space, claim) is not None
            assert bool(self.pool.never(claim)) == (not has_room)

    @invariant()
    def each_node_knows_who_has_blocks_there(self) -> None:
        pool = self.pool
        known = {(at, name) for at, names in pool._on_node.items() for name in names}
        assert known == {
            (pool.space.node_at(run.first), one.name)
            for one in pool.applications.values()
            if one.phase not in {"waiting", "suspended", "lost"}
            for run in (*one.runs, *one.source)
        }

    @invariant()
    def what_is_queued_is_what_waits_or_is_suspended(self) -> None:
        waiting = {
            one.name for one in self.pool.applications.values()
            if one.phase in {"waiting", "suspended"}
        }  # fmt: skip
        assert set(self.pool.queue) == waiting
        for one in self.pool.applications.values():
            assert (one.phase == "starting") == bool(one.blockers)

    def teardown(self) -> None:
        """Once all that runs has ended, all that waits and fits the pool has been served."""
        for name, why in sorted(self.closed):
            self.closed.discard((name, why))
            self.check_actions(self.pool.open([name], why, self.now))
        for _ in range(1000):
            self.now += 1
            ended = next(
                (one for one in self.pool.applications.values()
                 if one.phase not in {"waiting", "suspended", "starting"}), None,
            )  # fmt: skip
            if ended is None:
                break
            if ended.phase == "suspending":
                self.check_actions(self.pool.suspended(ended.name, self.now))
            else:
                self.check_actions(self.pool.release(ended.name, self.now))
        empty = self.pool.space.free[""] == self.pool.space.size[""]
        for name in self.pool.queue:
            one = self.pool.applications[name]
            assert empty
            assert one.phase == "suspended" or not fits_empty(self.pool, one.claim), (one, empty)


def kept_by(one):
    """What nobody else may have because of it."""
    return one.kept_runs if one.starter else (*one.runs, *one.kept_runs)


def overlap(runs, others) -> bool:
    return any(a.first <= b.last and b.first <= a.last for a in runs for b in others)


def fits_empty(pool: Pool, claim: Claim) -> bool:
    return place(pool.space, claim) is not None


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_any_sequence_of_orders_keeps_the_pool_whole = PoolMachine.TestCase
