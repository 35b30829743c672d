"""Cards of several nodes have the same sums, each byte of which crossed between nodes once."""

import contextlib
import functools
import json
import platform
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.card.support.groups import groups_on, on_all, said_on

from penstock.card.worker import board as board_module
from penstock.card.worker.adding import added
from penstock.card.worker.exchange import AbsentError
from penstock.card.worker.leaders import SMALL_BYTES

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="cards have a board on x86 processors alone"
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
WITHIN_S = 30
# A card of a program, on a node of its own number; it exchanges until it cannot.
CARD = """
import json, sys
import torch
from penstock.card.worker.collectives import Group
card, cards = int(sys.argv[1]), int(sys.argv[2])
group = Group(card, cards, "127.0.0.1")
print(json.dumps({key: one.hex() for key, one in group.said().items()}), flush=True)
group.meet({key: bytes.fromhex(one) for key, one in json.loads(input()).items()})
print("met", flush=True)
try:
    while True:
        with group.start_sum([torch.ones(40_000)]) as rows:
            assert rows.sum(0).unique().tolist() == [cards]
except RuntimeError as error:
    print("lost", error, flush=True)
"""


def own_data(card, number, count, dtype):
    """What a card gives in an exchange: numbers that every type can add up exactly."""
    plan = torch.Generator().manual_seed(1000 * number + card)
    return torch.randint(-20, 20, (count,), generator=plan).to(dtype)


@st.composite
def programs(draw):
    """Cards on nodes, and what they exchange."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    nodes = draw(st.permutations([node for node, size in enumerate(sizes) for _ in range(size)]))
    exchange = st.tuples(
        st.sampled_from(("sum", "rows", "gather")),
        st.one_of(st.integers(1, 40), st.integers(SMALL_BYTES // 8 - 2, SMALL_BYTES // 8 + 2),
                  st.integers(SMALL_BYTES // 2 - 2, SMALL_BYTES)),
        st.sampled_from(DTYPES),
        st.sampled_from((*[None] * 8, *range(len(nodes)))),  # who has nothing to give
        st.booleans(),  # whether a sum is waited for later
    )  # fmt: skip
    return nodes, draw(st.lists(exchange, min_size=4, max_size=12))


@settings(max_examples=25, deadline=None)
@given(program=programs(), part_bytes=st.sampled_from((1 << 17, 32 << 20)))
def test_all_cards_have_the_same_result_of_each_exchange_of_any_nodes(program, part_bytes):
    nodes, exchanges = program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(board_module, "PART_BYTES", part_bytes)
        groups = groups_on(nodes)
        has_levels = len(nodes) > len(set(nodes)) > 1
        assert [one._levels is not None for one in groups] == [has_levels] * len(nodes)
        results = on_all(groups, lambda one: exchanged(one, exchanges))
    for number, (what, count, dtype, absent, _) in enumerate(exchanges):
        found = [one[number] for one in results]
        if absent is not None:
            errors = [ZeroDivisionError if card == absent else AbsentError
                      for card in range(len(nodes))]  # fmt: skip
            if what == "gather":
                errors = [AbsentError] * len(nodes)
            assert found == errors
            continue
        rows = torch.stack([own_data(card, number, count, dtype) for card in range(len(nodes))])
        wanted = rows.sum(0).to(dtype) if what == "sum" else rows
        if what == "gather":
            wanted = rows.view(torch.uint8).flatten()
        assert all(one.equal(wanted) for one in found), (number, what, found, wanted)


def exchanged(group, exchanges):
    """What a card has of each exchange: a tensor, or the type of an error."""
    results, begun = {}, {}
    for number, (what, *how, is_late) in enumerate(exchanges):
        begun[number] = begin(group, number, what, *how)
        if what != "sum" or not is_late:
            results |= {one: tried(finish) for one, finish in begun.items()}
            begun.clear()
    return results | {one: tried(finish) for one, finish in begun.items()}


def begin(group, number, what, count, dtype, absent):
    """Begins an exchange; what comes waits for it."""
    own, cause = own_data(group.card, number, count, dtype), ZeroDivisionError()
    is_absent = absent == group.card
    if what == "gather":
        size = count * dtype.itemsize
        bounds = [card * size for card in range(group.cards + 1)]
        given = None if is_absent else own.view(torch.uint8)
        return functools.partial(group.gather, given, bounds, torch.device("cpu"))
    if what == "rows":
        exchange = group._start(None, count, dtype, cause, is_small=True) if is_absent else (
            group.rows(own))  # fmt: skip
        return functools.partial(content, exchange, torch.clone)
    exchange = group.start_without(count, dtype, cause) if is_absent else (
        group.start_sum([own[:1], own[1:]]))  # fmt: skip
    return functools.partial(content, exchange, added)


def tried(function):
    try:
        return function()
    except (AbsentError, ZeroDivisionError) as error:
        return type(error)


def content(exchange, function):
    with exchange as rows:
        return function(rows)


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 1, 0, 2, 2, 2]])
def test_sums_of_numbers_of_any_size_have_the_same_bits_on_all_cards(nodes):
    groups = groups_on(nodes)

    def run(group):
        plan = torch.Generator().manual_seed(group.card)
        sums = []
        for count in (5, 1000, 100_000, 300_001):
            own = torch.randn(count, generator=plan) * 10 ** (4 * torch.rand(1, generator=plan))
            with group.start_sum([own]) as rows:
                sums.append((own, added(rows)))
        return sums

    for by_card in zip(*on_all(groups, run), strict=True):
        owns, sums = zip(*by_card, strict=True)
        assert all(one.equal(sums[0]) for one in sums)
        wanted = torch.stack(owns).sum(0)
        torch.testing.assert_close(sums[0], wanted, rtol=0, atol=1e-6 * sum(map(largest, owns)))


def largest(tensor):
    return tensor.abs().max().item()


def test_pieces_of_a_sum_that_are_not_all_of_one_size_are_expected_alike_by_all_leaders():
    pieces = SMALL_BYTES // 4 + 1, SMALL_BYTES // 4, SMALL_BYTES // 4
    groups = groups_on([0, 0, 1, 2])

    def run(group):
        with group.start_sum([torch.ones(sum(pieces) - 1)]) as rows:
            return added(rows).unique().tolist()

    assert on_all(groups, run) == [[4]] * 4


class Counted:
    """Gloo, and the bytes that are given to it."""

    def __init__(self, gloo):
        self._gloo, self.sent_bytes, self.recv = gloo, 0, gloo.recv

    def send(self, tensors, card, tag):
        self.sent_bytes += tensors[0].nbytes
        return self._gloo.send(tensors, card, tag)

    def __getattr__(self, name):
        raise AssertionError(f"two levels need no {name} of all cards")


@pytest.mark.parametrize(
    ("nodes", "count", "times"),
    [([0, 0, 1, 1], 10, 2), ([0, 1, 0, 1, 1], 500_000, 2), ([0, 0, 1, 2], 10, 6),
     ([0, 0, 1, 1, 2, 2], 600_000, 4)],
)  # fmt: skip
def test_a_sum_crosses_between_two_nodes_once_in_each_direction(nodes, count, times):
    """Of three, each piece goes to the one that adds it up, and its sum from there: 2 (3 - 1)."""
    groups = groups_on(nodes)
    gloos = [Counted(group._gloo) for group in groups]
    for group, gloo in zip(groups, gloos, strict=True):
        group._gloo = gloo
        if group._levels._leaders is not None:
            group._levels._leaders._gloo = gloo
            for expected in group._levels._leaders._expected.values():
                for swap in expected:
                    swap._gloo = gloo

    def run(group):
        with group.start_sum([torch.ones(count - 1)]) as rows:
            return added(rows).sum().item()

    assert on_all(groups, run) == [len(nodes) * (count - 1)] * len(nodes)
    assert sum(one.sent_bytes for one in gloos) == times * count * 4


def test_sums_that_one_card_begins_and_all_wait_for_in_another_order_are_right():
    groups = groups_on([0, 0, 0, 1, 1])

    def run(group):
        delays = random.Random(group.card)  # noqa: S311 - not for secrets
        begun = [(number, group.start_sum([torch.full((30_000,), float(number))]))
                 for number in range(20)]  # fmt: skip
        assert group.sum(torch.ones(2)).tolist() == [5, 5]  # it overtakes them
        delays.shuffle(begun)
        for number, exchange in begun:
            with exchange as rows:
                assert added(rows).unique().tolist() == [5 * number]
        return True

    assert all(on_all(groups, run))


def test_cards_without_a_board_exchange_as_cards_of_so_many_nodes():
    groups = groups_on([0, 0, 1, 1], without_board=(3,))
    assert [one._levels for one in groups] == [None] * 4
    assert on_all(groups, lambda one: one.sum(torch.ones(2)).tolist()) == [[4, 4]] * 4


def test_a_card_that_cannot_write_its_part_gives_none_on_any_node():
    groups = groups_on([0, 0, 1, 1])

    def run(group):
        own = torch.ones(4, device="meta" if group.card == 3 else "cpu")  # meta has no data
        error = NotImplementedError if group.card == 3 else AbsentError
        with pytest.raises(error), group.start_sum([own]):
            pass
        with pytest.raises(error):
            group.gather(own.to(torch.uint8), [0, 4, 8, 12, 16], torch.device("cpu"))
        return group.sum(torch.ones(2)).tolist()

    assert on_all(groups, run) == [[4, 4]] * 4


def test_a_card_that_cannot_take_what_it_gathered_goes_on_in_step_with_the_others(monkeypatch):
    monkeypatch.setattr(board_module, "PART_BYTES", 1024)
    groups = groups_on([0, 0, 1])

    def run(group):
        device = torch.device("mps" if group.card == 1 else "cpu")  # not on a machine with a board
        with pytest.raises(RuntimeError) if group.card == 1 else contextlib.nullcontext():
            group.gather(torch.ones(100, dtype=torch.uint8), [0, 100, 200, 300], device)
        return [group.sum(torch.ones(3)).tolist() for _ in range(50)]

    assert on_all(groups, run) == [[[3, 3, 3]] * 50] * 3


@pytest.mark.parametrize(("victim", "survivors"), [(2, (0, 1)), (0, (2,))])
def test_a_killed_leader_is_an_error_on_all_other_nodes(victim, survivors):
    nodes = [0, 0, 1]
    with contextlib.ExitStack() as stack:
        cards = []
        for card in range(len(nodes)):
            command = [sys.executable, "-c", CARD, str(card), str(len(nodes))]
            cards.append(stack.enter_context(subprocess.Popen(
                command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )))  # fmt: skip
            stack.callback(cards[-1].kill)
        said = {}
        for node, card in zip(nodes, cards, strict=True):
            own = json.loads(card.stdout.readline())
            own = said_on(node, {key: bytes.fromhex(one) for key, one in own.items()})
            said |= {key: one.hex() for key, one in own.items()}
        for card in cards:
            print(json.dumps(said), file=card.stdin, flush=True)
        for card in cards:
            assert card.stdout.readline() == "met\n"
        cards[victim].kill()
        for survivor in survivors:
            told, _ = cards[survivor].communicate(timeout=WITHIN_S)
            assert told.startswith("lost "), told
