"""Cards of one node read what each of them wrote, never what was there before or comes after."""

import json
import platform
import random
import threading
import time

import pytest
import torch
from tests.card.support.groups import groups_on, on_all

from penstock.card.worker import board as board_module
from penstock.card.worker.adding import added
from penstock.card.worker.board import Board, NoBoardError, nodes_of
from penstock.card.worker.exchange import AbsentError

CARDS = 3

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="cards have a board on x86 processors alone"
)


def boards_of(cards=CARDS):
    boards = [Board() for _ in range(cards)]
    said = [one.said() for one in boards]
    on_all(list(enumerate(boards)), lambda one: one[1].meet(one[0], said))
    return boards


def content(card, number, size):
    """What a card writes in an exchange: no two of them are alike."""
    return torch.full((size,), (card * 83 + number * 7) % 251, dtype=torch.uint8)


@pytest.mark.parametrize("seed", range(8))
def test_each_exchange_gives_what_was_written_for_it_while_others_are_open(monkeypatch, seed):
    monkeypatch.setattr(board_module, "PART_BYTES", 2048)  # it wraps around many times
    plan = random.Random(seed)  # noqa: S311 - not for secrets
    sizes = [plan.choice((1, 64, 100, 700, 1500)) for _ in range(400)]
    stays_open = [plan.random() < 0.3 for _ in sizes]
    boards = boards_of()

    def run(board):
        delays, kept, refused = random.Random(board.own), [], []  # noqa: S311 - as above
        for number, size in enumerate(sizes):
            slot = board.place(size)
            if slot is None:
                refused.append(number)
                continue
            slot.rows[board.own, :size] = content(board.own, number, size)
            if delays.random() < 0.05:
                time.sleep(0.001)
            slot.post()
            kept.append((number, size, slot))
            if stays_open[number] and len(kept) < 3:
                continue
            delays.shuffle(kept) if number % 2 else None
            for one in kept:
                check(*one)
            kept.clear()
        for one in kept:
            check(*one)
        return refused

    def check(number, size, slot):
        slot.wait()
        for card in range(CARDS):
            assert slot.rows[card, :size].equal(content(card, number, size)), (card, number)
        slot.close()

    refused = on_all(boards, run)
    assert refused == [refused[0]] * CARDS
    assert 0 < len(refused[0]) < len(sizes)


def test_nothing_is_written_over_before_all_cards_have_read_it(monkeypatch):
    monkeypatch.setattr(board_module, "PART_BYTES", 128)
    first, second = boards_of(2)
    slots = [one.place(64) for one in (first, second)]
    for one in slots:
        one.post()
    slots[0].wait()
    slots[0].close()
    is_placed = threading.Event()
    thread = threading.Thread(target=lambda: (first.place(64), is_placed.set()))
    thread.start()
    assert not is_placed.wait(0.2)
    slots[1].wait()
    slots[1].close()
    assert is_placed.wait(5)
    thread.join()


def test_what_is_larger_than_the_board_has_no_place():
    (board,) = boards_of(1)
    assert board.place(board_module.PART_BYTES + 1) is None
    assert board.place(board_module.PART_BYTES - 64) is not None


def changed(card, **values):
    return lambda said: said | {card: json.dumps(json.loads(said[card]) | values).encode()}


@pytest.mark.parametrize(
    "change",
    [
        changed(1, secret="00" * 16),
        changed(0, address=b"\0nobody".hex()),
        lambda said: said | {1: b"no JSON"},
    ],
)  # fmt: skip
def test_cards_that_cannot_meet_say_so_within_the_time_for_it(monkeypatch, change):
    monkeypatch.setattr(board_module, "_MEETS_WITHIN_S", 0.5)
    boards = [Board() for _ in range(2)]
    said = change({card: one.said() for card, one in enumerate(boards)})

    def meet(card):
        try:
            boards[card].meet(card, list(said.values()))
        except NoBoardError:
            return False
        return True

    assert not all(on_all(range(2), meet))


def test_cards_are_grouped_by_what_they_say_of_their_node():
    own = Board()
    other = json.dumps(json.loads(own.said()) | {"node": ["another", 1, 0]}).encode()
    assert nodes_of({0: own.said(), 1: other, 2: own.said(), 3: other}, 4) == [[0, 2], [1, 3]]
    for wrong in ({0: own.said()}, {0: own.said(), 1: b"no JSON"}, {0: own.said(), 1: b"[]"}):
        with pytest.raises(NoBoardError):
            nodes_of(wrong, 2)
    own.end()


def test_a_processor_with_another_order_of_stores_has_no_board(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NoBoardError):
        Board()


@pytest.mark.parametrize("without_board", [(), (1,)])
def test_sums_and_rows_are_the_same_with_and_without_a_board(without_board):
    groups = groups_on([0] * CARDS, without_board)
    assert [group._board is None for group in groups] == [bool(without_board)] * CARDS

    def run(group):
        own = torch.arange(5.0) + group.card
        with group.rows(own, own[:1]) as given:
            rows = given.clone()
        large = [torch.full((40_000,), float(group.card + 1)), torch.ones(3)]
        with group.start_sum(large) as parts:
            total = added(parts)
        return rows, group.sum(own), total

    for rows, total, large in on_all(groups, run):
        assert rows.equal(torch.stack([
            torch.cat((torch.arange(5.0) + card, torch.tensor([float(card)])))
            for card in range(CARDS)
        ]))  # fmt: skip
        assert total.equal(3 * torch.arange(5.0) + 3)
        assert large.equal(torch.cat((torch.full((40_000,), 6.0), torch.full((3,), 3.0))))


@pytest.mark.parametrize("without_board", [(), (0,)])
def test_a_card_without_data_is_missed_by_all(without_board):
    groups = groups_on([0] * CARDS, without_board)

    def run(group):
        if group.card == 1:
            group.rows_without(4, torch.float32, ValueError("none"))
        else:
            with pytest.raises(AbsentError):
                group.sum(torch.ones(4))
        own = torch.ones(70_000)
        start = group.start_sum([own])
        cause = MemoryError("none")
        missing = group.start_without(7, torch.float32, cause) if group.card == 2 else (
            group.start_sum([own[:7]]))  # fmt: skip
        with start as parts:
            assert added(parts).equal(3 * own)
        with pytest.raises(MemoryError if group.card == 2 else AbsentError), missing:
            pass
        return group.sum(torch.ones(2)).tolist()

    assert on_all(groups, run) == [[3, 3]] * CARDS


def test_a_card_that_cannot_write_its_part_gives_none_and_nobody_waits_for_it():
    groups = groups_on([0] * CARDS)

    def run(group):
        own = torch.ones(4, device="meta" if group.card == 1 else "cpu")  # meta has no data
        error = NotImplementedError if group.card == 1 else AbsentError
        with pytest.raises(error), group.start_sum([own]):
            pass
        return group.sum(torch.ones(2)).tolist()

    assert on_all(groups, run) == [[3, 3]] * CARDS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_batch_normalization_keeps_statistics_of_the_models_own_type(cards, dtype):
    torch.manual_seed(2)
    own = torch.nn.BatchNorm2d(5).to(dtype)
    moved = torch.nn.BatchNorm2d(5).to(dtype).to("penstock")
    batch = torch.randn(70, 5, 32, 32).to(dtype)
    result = moved(torch.nn.functional.conv2d(
        batch.to("penstock"), torch.eye(5, dtype=dtype)[:, :, None, None].to("penstock")
    ))  # fmt: skip
    torch.testing.assert_close(result.cpu(), own(batch))
    for name in ("running_mean", "running_var"):
        assert getattr(moved, name).dtype is dtype
        torch.testing.assert_close(getattr(moved, name).cpu(), getattr(own, name))
