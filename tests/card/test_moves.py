"""A program moves to other cards between its steps and within them: the training goes on."""

import os
import random
import signal
import threading

import pytest
import torch
from tests.card.support.processes import assert_gone
from tests.card.support.sessions import held, session_of
from tests.card.support.training import Training, losses_of

from penstock.card.card_list import parse_cards
from penstock.card.device.tensors import buffer_of
from penstock.card.link import CardError

STEPS, MOVES = 9, int(os.environ.get("PENSTOCK_TEST_MOMENTS", "3"))
CARDS = "cpu=1,cpu=2,cpu=4"


@pytest.fixture(scope="module")
def undisturbed():
    torch.set_num_threads(1)
    return losses_of(CARDS, STEPS)


def close(losses, expected):
    return losses == pytest.approx(expected, rel=1e-6)


def test_a_training_goes_on_after_shrinking_and_growing(undisturbed):
    with session_of(CARDS) as session:
        training, losses = Training(), []
        for step in range(STEPS):
            if step == 3:
                session.replace_cards(parse_cards("cpu=1,cpu=3"))
            if step == 6:
                session.replace_cards(parse_cards("cpu=1,cpu=3,cpu=1,cpu=2"))
            losses.append(training.step())
    assert close(losses, undisturbed)


def test_new_processes_of_the_same_speeds_give_the_same_bits(undisturbed):
    with session_of(CARDS) as session:
        training, losses = Training(), []
        for step in range(STEPS):
            if step == 4:
                session.replace_cards(parse_cards(CARDS))
            losses.append(training.step())
    assert losses == undisturbed


def test_moves_at_random_moments_change_no_loss(undisturbed):
    """Ten moves, each before a step, between forward and backward, or before the optimizer."""
    chance = random.Random(5)  # noqa: S311 - moments, the same in each run
    moments = {(step % STEPS, chance.randrange(3)) for step in range(MOVES)}
    sizes = [(1,), (2, 3), (3, 1, 2)]

    def moves(*moment):
        if moment in moments:
            move(session, chance.choice(sizes))

    with session_of("cpu=2,cpu=1") as session:
        training, losses = Training(), []
        for step in range(STEPS):
            moves(step, 0)
            loss = training.forward()
            moves(step, 1)
            training.optimizer.zero_grad()
            loss.backward()
            moves(step, 2)
            training.optimizer.step()
            losses.append(loss.item())
    assert close(losses, undisturbed)


def move(session, speeds):
    session.replace_cards(parse_cards(",".join(f"cpu={speed}" for speed in speeds)))


@pytest.fixture
def two():
    with session_of("cpu=1,cpu=1") as session:
        yield session


def test_a_move_to_a_card_that_is_lost_leaves_the_program_where_it_was(two, monkeypatch):
    from penstock.card.device import session as module

    own = torch.arange(12.0, device="penstock").view(6, 2)
    before, fill, lost = two.cards, module.fill, []

    def kill_then_fill(cards, *rest):
        lost.append(cards.cards[1].pid)
        os.kill(lost[0], signal.SIGKILL)
        return fill(cards, *rest)

    monkeypatch.setattr(module, "fill", kill_then_fill)
    with pytest.raises(CardError, match=r"^card 1 ") as caught:
        two.replace_cards(parse_cards("cpu=1,cpu=2"))
    assert f"pid {lost[0]}" in str(caught.value)
    assert two.cards is before
    assert own.sum().item() == 66


def test_a_move_to_cards_with_too_little_memory_leaves_the_program_where_it_was(two):
    own = torch.ones(1 << 20, device="penstock")
    with pytest.raises(torch.OutOfMemoryError, match="card 1"):
        two.replace_cards(parse_cards(f"cpu=1,cpu=1@{1 << 20}"))
    assert own.sum().item() == 1 << 20


def test_what_is_missing_is_missing_after_a_move():
    with session_of(f"cpu=1,cpu=1@{1 << 20}") as session:
        small = torch.ones(4, device="penstock")
        never_written = torch.empty(4, device="penstock")
        with held(session):
            large = torch.ones(1 << 20, device="penstock")
        with pytest.raises(torch.OutOfMemoryError):
            session.replace_cards(parse_cards("cpu=1,cpu=1"))
        session.replace_cards(parse_cards("cpu=1,cpu=1"))
        for one in (large, large.sum(), large + 1):
            with pytest.raises(RuntimeError, match="content of this tensor is missing"):
                one.cpu()
        assert never_written.fill_(2).add_(small).sum().item() == 12


def test_large_buffers_go_in_several_frames(two, monkeypatch):
    from penstock.card import frames
    from penstock.card.device import stream

    for module in (frames, stream):
        monkeypatch.setattr(module, "MOST_PART_BYTES", 1000)
    own = torch.randn(1111, 3)
    moved = own.to("penstock")
    two.replace_cards(parse_cards("cpu=1,cpu=1"))
    assert torch.equal(moved.cpu(), own)
    assert torch.equal(moved[500:600].cpu(), own[500:600])


def test_the_former_workers_end(two):
    pids = [one.pid for one in two.cards.cards]
    two.replace_cards(parse_cards("cpu=1"))
    assert_gone(pids)


def test_other_threads_go_on_while_the_program_moves(two):
    """Another thread computes all the time."""
    results, is_over = [], threading.Event()

    def compute():
        own = torch.ones(8, 8, device="penstock")
        while not is_over.is_set():
            results.append((own @ own).sum().item())

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        two.replace_cards(parse_cards("cpu=1,cpu=2"))
    finally:
        is_over.set()
        thread.join()
    assert set(results) == {512.0}


def test_new_speeds_split_new_tensors_and_old_ones_meet_them(two):
    old = torch.randn(24, 40, device="penstock")
    weight = torch.randn(40, 3000, device="penstock")
    first = old @ weight
    two.set_speeds((1.0, 3.0))
    other = torch.randn(24, 40, device="penstock")
    second = other @ weight
    assert buffer_of(first).layout is not buffer_of(second).layout
    torch.testing.assert_close((first + second).cpu(), (old.cpu() + other.cpu()) @ weight.cpu(),
                               rtol=1e-4, atol=1e-4)  # fmt: skip


def test_what_operations_return_is_not_inferred_again_for_new_speeds(two, monkeypatch):
    from penstock.card.device import planner

    own = torch.randn(24, 40, device="penstock")
    before = own.tanh()
    two.set_speeds((1.0, 3.0))
    monkeypatch.setattr(planner, "infer", None)
    assert torch.equal(own.tanh().cpu(), before.cpu())


def test_a_training_goes_on_with_new_speeds(undisturbed):
    with session_of("cpu=1,cpu=1") as session:
        training, losses = Training(), []
        for step in range(4):
            loss = training.forward()
            if step == 1:
                session.set_speeds((1.0, 5.0))
            losses.append(training.backward(loss))
    assert close(losses, undisturbed[:4])
