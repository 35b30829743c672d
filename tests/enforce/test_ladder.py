"""The ladder by itself: any stream of judgements, any policy, killed at any look."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.node.enforcement.ladder import (
    CLEAR_NS,
    FORGET_ROUNDS_NS,
    KILL_AFTER_NS,
    LONGEST_GAP_NS,
    PAST_SHIM,
    ROUNDS,
    Judgement,
    Ladder,
    Orders,
    Step,
)
from penstock.node.enforcement.process import Process
from penstock.node.enforcement.saved_ladder import FILE, from_json, read_ladder, to_json
from penstock.policy.schema import OnExceed

S = 1_000_000_000
GPU = "GPU-00000000-0000-0000-0000-000000000000"
ONE, TWO = Process(100, 5, "one"), Process(101, 6, "two")


def judged(kind="memory", *offenders, unshimmed=(), cut=100, device=GPU):
    offenders = frozenset(offenders or (ONE,))
    return Judgement(kind, device, f"{kind} of {device}", offenders, frozenset(unshimmed), cut)


def policy(measured="terminate", grace_s=10):
    return OnExceed(measured=measured, grace=f"{grace_s}s")


def climb(ladder, seconds, *judgements, on_exceed=None, start_s=0):
    """Looks once a second; the orders of each look."""
    return [
        ladder.advance((start_s + second) * S, judgements, on_exceed or policy())
        for second in range(seconds)
    ]


def test_memory_over_quota_is_throttled_at_once_and_terminated_after_its_grace():
    orders = climb(Ladder(), 12, judged("memory"))
    assert [o.step.name for o in orders] == ["THROTTLE"] * 10 + ["TERMINATE"] * 2
    assert orders[0].cut_permille == {GPU: 100}
    assert orders[10].terminate == {ONE}
    assert not any(o.stop or o.suspend for o in orders)
    assert [c.step for o in orders for c in o.changes] == [Step.THROTTLE, Step.TERMINATE]


def test_use_past_the_shim_is_stopped_at_once_and_ended_after_the_grace():
    ladder = Ladder()
    orders = climb(ladder, 17, judged("uncharged"))
    assert all(o.stop == {ONE} for o in orders[:10])
    assert orders[10].terminate == {ONE}
    assert not orders[10].stop
    assert not orders[10].resume  # SIGTERM comes with a SIGCONT of its own
    assert [bool(o.kill) for o in orders[10:]] == [False] * 5 + [True] * 2
    assert [c.killed for o in orders for c in o.changes] == [False, False, True]


@pytest.mark.parametrize(
    ("measured", "first", "last"),
    [
        ("deny", Step.DENY, Step.DENY),
        ("throttle", Step.THROTTLE, Step.THROTTLE),
        ("suspend", Step.THROTTLE, Step.SUSPEND),
        ("terminate", Step.THROTTLE, Step.TERMINATE),
    ],
)
def test_the_policy_says_how_far_it_goes(measured, first, last):
    orders = climb(Ladder(), 20, judged("cores"), on_exceed=policy(measured))
    assert (orders[0].step, orders[-1].step) == (first, last)
    assert bool(orders[-1].suspend) == (last is Step.SUSPEND)


def test_what_is_over_is_lifted_and_said_once():
    ladder = Ladder()
    climb(ladder, 12, judged("memory", unshimmed=(ONE,)), on_exceed=policy("suspend"))
    orders = climb(ladder, 20, on_exceed=policy("suspend"), start_s=12)
    lifted = next(o for o in orders if o.changes)
    assert lifted.unsuspend
    assert lifted.resume == {ONE}
    assert lifted.restore == {GPU}
    assert sum(len(o.changes) for o in orders) == 1
    assert ladder.is_idle


def test_a_mismatch_of_the_charges_within_the_quota_is_only_said():
    orders = climb(Ladder(), 60, judged("mismatch"))
    assert {o.step for o in orders} == {Step.DENY}
    assert [len(o.changes) for o in orders] == [1] + [0] * 59


def test_a_process_started_anew_after_the_grace_is_ended_too_and_recorded():
    ladder = Ladder()
    climb(ladder, 11, judged("uncharged", ONE))
    orders = ladder.advance(11 * S, [judged("uncharged", TWO)], policy())
    assert orders.kill == {TWO}, "it is not asked again"
    assert not orders.terminate
    assert [(c.offenders, c.killed) for c in orders.changes] == [({TWO}, True)]


def test_who_starts_it_anew_again_and_again_is_ended_too():
    ladder = Ladder()
    climb(ladder, 11, judged("uncharged", ONE))
    ladder.forget([ONE])
    all_end = []
    for number in range(5):
        fresh = Process(200 + number, 7, "anew")
        orders = ladder.advance((11 + number) * S, [judged("uncharged", fresh)], policy())
        assert orders.kill == {fresh}
        all_end.append(orders.kill_all)
        ladder.forget([fresh])
        ladder = from_json(to_json(ladder)) if number == 1 else ladder
        ladder.at_ns = (11 + number) * S
    assert all_end == [False] * ROUNDS + [True] * (5 - ROUNDS)
    assert "all processes of the tenant are killed" in orders.changes[0].reason
    later_ns = 20 * S + FORGET_ROUNDS_NS
    for second in range(15):
        orders = ladder.advance(later_ns + second * S, [judged("uncharged", TWO)], policy())
    assert TWO in ladder.ending, "after a while it is asked again"
    assert not orders.kill_all


def test_nobody_is_ended_for_what_still_runs_while_suspended():
    orders = climb(Ladder(), 60, judged("suspended"))
    assert {o.step for o in orders} == {Step.SUSPEND}
    assert all(o.stop == {ONE} and not o.suspend for o in orders)


def test_what_comes_rarely_adds_up_to_nothing():
    """Two seconds in every twenty, for ten minutes, under a grace of ten."""
    ladder = Ladder()
    for second in range(600):
        found = [judged("cores")] if second % 20 < 3 else []
        assert ladder.advance(second * S, found, policy()).step < Step.TERMINATE


def test_time_in_which_nobody_looked_is_no_excess():
    ladder = Ladder()
    climb(ladder, 3, judged("memory"))
    later = ladder.advance(3600 * S, [judged("memory")], policy())
    assert later.step is Step.THROTTLE


LOOKS = st.lists(
    st.tuples(
        st.integers(1, 4 * S),  # since the look before; no two are in one nanosecond
        st.sets(st.sampled_from(["memory", "cores", "uncharged", "damaged", "mismatch"])),
        st.booleans(),  # the agent is killed after it
    ),
    max_size=60,
)
POLICIES = st.builds(
    policy, st.sampled_from(["deny", "throttle", "suspend", "terminate"]), st.integers(1, 20)
)


@settings(max_examples=300)
@given(LOOKS, POLICIES)
def test_nothing_is_ended_before_its_grace_and_nothing_without_a_reason(looks, on_exceed):
    ladder, now_ns = Ladder(), 0
    found_ns = dict.fromkeys(["memory", "cores", "uncharged", "damaged", "mismatch"], 0)
    found_before, fresh = set(), True
    for passed_ns, kinds, is_killed in looks:
        now_ns += passed_ns
        for kind in kinds & found_before:
            found_ns[kind] += 0 if fresh else min(passed_ns, LONGEST_GAP_NS)
        orders = ladder.advance(now_ns, [judged(k, ONE, TWO) for k in sorted(kinds)], on_exceed)
        # Never beyond what the policy allows, never before the grace was seen to pass.
        assert orders.step <= Step[on_exceed.measured.upper()]
        if orders.terminate or orders.kill:
            assert on_exceed.measured == "terminate"
            assert max(found_ns.values()) >= on_exceed.grace
        for change in orders.changes:
            assert change.reason
            assert change.step is Step.NONE or change.offenders
        # A process is in one state only.
        assert orders.stop.isdisjoint(orders.resume)
        assert orders.stop.isdisjoint(orders.terminate | orders.kill)
        assert orders.resume.isdisjoint(orders.terminate | orders.kill)
        assert orders.kill <= ladder.ending.keys() - orders.terminate
        found_before, fresh = kinds, False
        if is_killed:
            ladder, fresh = from_json(to_json(ladder)), True


@settings(max_examples=100)
@given(LOOKS, POLICIES)
def test_one_within_its_quota_is_never_touched(looks, on_exceed):
    ladder, now_ns = Ladder(), 0
    for passed_ns, _, is_killed in looks:
        now_ns += passed_ns
        orders = ladder.advance(now_ns, [], on_exceed)
        assert orders.step is Step.NONE
        assert orders == Orders()
        ladder = from_json(to_json(ladder)) if is_killed else ladder
    assert ladder.is_idle


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 2 * S), min_size=1, max_size=40),
    st.sampled_from(["memory", "cores", "uncharged", "damaged"]),
    POLICIES,
)
def test_while_it_lasts_the_step_only_grows_and_comes_to_the_top(passed, kind, on_exceed):
    ladder, now_ns, before = Ladder(), 0, Step.NONE
    for passed_ns in passed:
        now_ns += passed_ns
        step = ladder.advance(now_ns, [judged(kind)], on_exceed).step
        assert step >= before
        before = step
    top = Step[on_exceed.measured.upper()]
    least = Step.SUSPEND if kind in PAST_SHIM else Step.THROTTLE
    assert before >= min(top, least)
    if sum(passed[1:]) >= on_exceed.grace:
        assert before is top


@settings(max_examples=200)
@given(LOOKS, POLICIES)
def test_all_of_it_survives_being_written_down(looks, on_exceed):
    ladder, now_ns = Ladder(), 0
    for passed_ns, kinds, _ in looks:
        now_ns += passed_ns
        ladder.advance(now_ns, [judged(k, ONE, unshimmed=(ONE,)) for k in kinds], on_exceed)
        again = from_json(to_json(ladder))
        expected = replace(
            ladder,
            at_ns=None,
            rungs={key: replace(rung, seen_ns=None) for key, rung in ladder.rungs.items()},
        )
        assert again == expected


def test_a_killed_agent_neither_forgets_a_grace_nor_begins_it_anew():
    ladder = Ladder()
    climb(ladder, 7, judged("memory"))
    ladder = from_json(to_json(ladder))
    orders = climb(ladder, 6, judged("memory"), start_s=100)  # 93 s nobody looked
    assert [o.step.name for o in orders] == ["THROTTLE"] * 4 + ["TERMINATE"] * 2


def test_what_was_stopped_stays_so_until_the_next_agent_is_sure_that_it_is_over():
    ladder = Ladder()
    climb(ladder, 3, judged("uncharged"), on_exceed=policy("suspend"))
    ladder = from_json(to_json(ladder))
    orders = climb(ladder, 4, on_exceed=policy("suspend"), start_s=50)
    assert [o.stop for o in orders[:2]] == [{ONE}] * 2
    assert orders[CLEAR_NS // S].resume == {ONE}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "null", '"x"', "[" * 100_000])
def test_a_file_that_is_none_is_a_new_beginning(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert read_ladder(tmp_path).is_idle


def test_a_short_grace_holds_between_sigterm_and_sigkill_too():
    assert KILL_AFTER_NS > S
    orders = climb(Ladder(), 4, judged("memory"), on_exceed=policy(grace_s=1))
    assert orders[1].terminate == {ONE}
    assert orders[2].kill == {ONE}


def test_a_pardon_lets_all_go_at_once_and_what_is_still_wrong_climbs_anew():
    ladder, measured = Ladder(), policy("suspend", grace_s=2)
    wrong = [judged("uncharged"), judged("memory", TWO, unshimmed=(TWO,))]
    for second in range(6):
        held = ladder.advance(second * S, wrong, measured)
    assert (held.suspend, held.stop) == (True, {ONE, TWO})
    let_go = ladder.pardon(6 * S, measured)
    assert (let_go.unsuspend, let_go.suspend) == (True, False)
    assert (let_go.resume, let_go.stop) == ({ONE, TWO}, set())
    assert {one.reason for one in let_go.changes} == {"lifted by an administrator"}
    assert not ladder.findings
    again = [ladder.advance(second * S, wrong, measured) for second in range(7, 12)]
    assert not again[0].suspend, "it has its grace again"
    assert again[-1].suspend
    ending = Ladder()
    for second in range(8):
        ending.advance(second * S, [judged("memory", ONE)], policy("terminate", grace_s=2))
    assert ending.pardon(20 * S, policy("terminate", grace_s=2)).kill == {ONE}, "no pardon for that"
