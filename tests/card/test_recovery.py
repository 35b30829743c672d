"""A card that is lost comes back with what was on it, and the program notices only a pause."""

import os
import random
import signal
import threading
import time
from itertools import pairwise

import pytest
import torch
from tests.card.support.processes import assert_gone
from tests.card.support.sessions import session_of
from tests.card.support.training import Training, losses_of

from penstock.card import PenstockCardWarning, trace
from penstock.card.card_list import parse_cards
from penstock.card.device import recovery
from penstock.card.device.recovery import recovers
from penstock.card.failures import Failures
from penstock.card.link import CardError
from penstock.model import PenstockError
from penstock_api.v1.card_ops_pb2 import Failure

CARDS = "cpu=1,cpu=2"
MOMENTS = int(os.environ.get("PENSTOCK_TEST_MOMENTS", "10"))
STEPS = 20


@pytest.fixture(autouse=True)
def recovering(monkeypatch):
    monkeypatch.setenv("PENSTOCK_CARD_RECOVERY", "on")
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def undisturbed():
    torch.set_num_threads(1)
    return losses_of(CARDS, STEPS)


def lose(pid, number, after_s):
    """Kills or stops a worker after a while, beside the program."""

    def run():
        time.sleep(after_s)
        os.kill(pid, number)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_training_that_loses_a_card_at_any_moment_has_the_same_losses(
    undisturbed, moment, monkeypatch
):
    chance = random.Random(moment)  # noqa: S311 - a moment, the same in each run
    monkeypatch.setattr(recovery, "LEAST_PERIOD_S", chance.choice([0.0, 0.05, 5.0]))
    with session_of(CARDS) as session:
        pids = [one.pid for one in session.cards.cards]
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        thread = lose(chance.choice(pids), number, 1.5 * chance.random())
        training = Training()
        losses = [training.step() for _ in range(STEPS)]
        while thread.is_alive():
            training = Training()
            losses = [training.step() for _ in range(STEPS)]
        again = Training()
        assert losses == undisturbed
        assert [again.step() for _ in range(STEPS)] == undisturbed
        assert_gone(pids)


def lost(session, *cards, number=signal.SIGKILL):
    """Kills or stops workers, while the program does nothing."""
    torch.penstock.synchronize()
    for card in cards:
        os.kill(session.cards.cards[card].pid, number)
    if number == signal.SIGKILL:
        assert_gone([session.cards.cards[card].pid for card in cards])


def split(rows=12):
    return torch.arange(rows * 64.0, device="penstock").view(rows, 64).relu() + 1


def of_shape_by_data():
    own = split()
    return own[own > 100].sort(descending=True).values * 2


def gradients():
    torch.manual_seed(3)
    layer = torch.nn.Linear(64, 32).to("penstock")
    layer(split() / 100).tanh().sum().backward()
    return layer.weight.grad


def dropped_out():
    torch.manual_seed(5)
    return torch.nn.functional.dropout(split(), 0.5)


def written_into():
    own = split()
    own[2:5].mul_(3)
    own.t()[1] = 7
    return own


MADE = (split, of_shape_by_data, gradients, dropped_out, written_into)


@pytest.mark.parametrize("has_snapshot", [False, True], ids=["from_the_start", "from_a_snapshot"])
@pytest.mark.parametrize("make", MADE)
def test_tensors_of_every_layout_have_the_same_content_after_a_loss(make, has_snapshot):
    with session_of(CARDS) as session:
        expected = make().cpu()
        own = make()
        if has_snapshot:
            take_snapshot(session)
        later = own * 2
        lost(session, 1)
        assert torch.equal((own + 1).cpu(), expected + 1)
        assert torch.equal(later.cpu(), expected * 2)
        assert torch.equal(make().cpu(), expected), "random numbers and new operations as before"


def take_snapshot(session):
    """The journal begins anew."""
    with session.stream.lock:
        own = session.stream.recovery
        own._snap()
        deadline_s = time.monotonic() + 10
        while own._pending is not None:
            assert time.monotonic() < deadline_s
            own.between_calls()
            time.sleep(0.01)
    assert own._journal.position == 0


def test_all_cards_may_be_lost_at_once_and_again():
    with session_of(CARDS) as session:
        own = split()
        for _ in range(3):
            lost(session, 0, 1)
            own = own + 1
            assert own[0, 5].item() == own[0, 0].item() + 5
        take_snapshot(session)
        lost(session, 0, 1, number=signal.SIGSTOP)
        assert own[0, 0].item() == 4


def test_a_card_that_is_lost_while_it_comes_back_comes_back(monkeypatch):
    with session_of(CARDS) as session:
        own = split()
        former, met = recovery.start_cards, []

        def start(*given):
            cards = former(*given)
            if len(met) < 2:
                os.kill(cards.cards[len(met)].pid, signal.SIGKILL)
            met.append(cards)
            return cards

        monkeypatch.setattr(recovery, "start_cards", start)
        lost(session, 1)
        assert own[0, 5].item() == 6
        assert len(met) == 3


def test_cards_that_are_lost_each_time_end_the_program_with_the_first_reason(monkeypatch):
    monkeypatch.setattr(recovery, "AGAIN_S", 0.01)
    with session_of(CARDS) as session:
        own = split()
        former, met = recovery.start_cards, []

        def start(*given):
            cards = former(*given)
            met.append(cards)
            os.kill(cards.cards[0].pid, signal.SIGKILL)
            return cards

        monkeypatch.setattr(recovery, "start_cards", start)
        lost(session, 1)
        with pytest.raises(CardError, match=r"^card 1 .*it cannot be started again: card 0"):
            own.sum().item()
        assert len(met) == recovery.MOST_LOSSES
        with pytest.raises(CardError, match=r"^card 1 "):
            own + 1
        assert_gone([card.pid for one in met for card in one.cards])


@pytest.mark.parametrize("is_starting", [False, True], ids=["at_work", "while_a_card_comes_back"])
def test_cards_that_were_ended_for_good_do_not_come_back(monkeypatch, is_starting):
    over = CardError("application train", "has ended", "its node is gone", "claim it again")
    with session_of(CARDS) as session:
        own, pids = split(), [one.pid for one in session.cards.cards]
        former, ends = recovery.start_cards, []

        def start(*given):
            ends.append(threading.Thread(target=session.stream.end, args=(over,)))
            ends[-1].start()
            cards = former(*given)
            pids.extend(one.pid for one in cards.cards)
            return cards

        monkeypatch.setattr(recovery, "start_cards", start)
        if is_starting:
            lost(session, 1)
            (own + 1).sum()
            ends[0].join()
        else:
            session.stream.end(over)
        for _ in range(2):
            with pytest.raises(CardError, match="application train has ended"):
                own.sum().item()
        assert len(ends) == is_starting
        assert_gone(pids)


def test_an_operation_that_failed_is_told_once_and_its_result_stays_missing():
    with session_of("cpu=1@20000000,cpu=2@20000000") as session:
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(40_000_000, device="penstock").sum().item()
        own = split()
        large = torch.ones(40_000_000, device="penstock")
        with pytest.raises(torch.OutOfMemoryError):
            torch.penstock.synchronize()
        lost(session, 1)
        assert own[0, 5].item() == 6
        with pytest.raises(RuntimeError, match="missing"):
            large[0].item()
        assert own[0, 6].item() == 7


def test_a_failure_that_the_program_was_not_told_of_is_told_after_a_loss():
    with session_of("cpu=1@20000000,cpu=2@20000000") as session:
        own = split()
        torch.penstock.synchronize()
        with session.stream.lock:
            torch.ones(40_000_000, device="penstock")
            session.stream.flush()
            os.kill(session.cards.cards[1].pid, signal.SIGKILL)
        with pytest.raises(torch.OutOfMemoryError):
            own.sum().item()
        assert own[0, 5].item() == 6


class Judge(torch.nn.Module):
    """A layer whose gradients are a bucket of their own."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 1200)
        self.wide = torch.nn.Linear(1200, 1200)

    def forward(self, x):
        return self.wide(self.inner(x).tanh()).mean()


def test_a_snapshot_finishes_sums_of_gradients_that_nobody_has_any_more():
    with session_of(CARDS) as session:
        torch.manual_seed(2)
        judge, maker = Judge().to("penstock"), torch.nn.Linear(8, 64).to("penstock")
        x = torch.randn(12, 8).to("penstock")
        judge(maker(x)).backward()
        judge.zero_grad()  # gradients that are being added up
        assert session.reductions._running
        take_snapshot(session)
        judge(maker(x).detach()).backward()
        lost(session, 1)
        expected = judge.wide.weight.grad.cpu()
        judge.zero_grad()
        judge(maker(x).detach()).backward()
        assert torch.allclose(judge.wide.weight.grad.cpu(), expected)


def test_a_card_that_could_not_exchange_with_a_lost_one_has_not_failed(undisturbed):
    with session_of(CARDS) as session:
        training = Training()
        losses = [training.step() for _ in range(4)]
        failures = session.stream.failures
        with session.stream.lock:
            os.kill(session.cards.cards[1].pid, signal.SIGKILL)
            reset = Failure(operation="penstock::gather", type="RuntimeError", text="reset by peer")
            failures.note("card 0", reset)  # as it says before the end of the other is known
        losses += [training.step() for _ in range(STEPS - 4)]
        assert losses == undisturbed


def failure(text):
    return Failure(operation="aten::ones", type="OutOfMemoryError", text=text)


@pytest.mark.parametrize("told", range(5))
@pytest.mark.parametrize("since", range(4))
def test_of_failures_the_program_is_told_once_also_after_a_loss(told, since):
    """Four failures and a consequence; those after the snapshot come again."""
    former, own = Failures(), Failures()
    for number in range(4):
        former.note("card 0", failure(str(number)))
        if number + 1 == told:
            former.take()
    former.note("card 0", failure("reset by peer"))
    for number in range(since, 4):
        own.note("card 0", failure(str(number)))
    own.follow(former, since)
    expected = [str(number) for number in range(told, 4)]
    assert [one.text for _, one in own._noted] == expected
    assert own.is_set == bool(expected)
    assert own.count == 4


def test_a_trace_goes_on_on_the_cards_that_come_back(tmp_path):
    file = tmp_path / "trace.json"
    with session_of(CARDS) as session:
        own = split()
        with trace(file):
            lost(session, 1)
            assert own[0, 5].item() == 6
            until_s = time.monotonic() + 2
            while time.monotonic() < until_s:
                assert (own + 1)[0, 5].item() == 7
        pids = [str(one.pid) for one in session.cards.cards]
    text = file.read_text()
    assert all(f"pid {pid}" in text for pid in pids)


def test_the_program_is_warned_of_what_happened():
    with session_of(CARDS) as session:
        own = split()
        lost(session, 1)
        said = r"card 1 .* is gone: .*signal 9.* run again after .* s, with the same content"
        with pytest.warns(PenstockCardWarning, match=said):
            assert own[0, 5].item() == 6


def test_after_a_move_to_other_cards_a_loss_changes_nothing():
    with session_of(CARDS) as session:
        own = split()
        session.replace_cards(parse_cards("cpu=2,cpu=1,cpu=1"))
        later = own + 1
        deadline_s = time.monotonic() + 10
        while not session.stream.recovery._is_complete:
            assert time.monotonic() < deadline_s
            torch.penstock.synchronize()
            later = later + 0
            session.step_ended()
        lost(session, 2)
        assert later[11, 3].item() == 11 * 64 + 3 + 2
        with session.away() as go_on:
            go_on(parse_cards(CARDS))
        assert own[0, 5].item() == 6


def test_what_is_kept_does_not_grow_with_the_steps(monkeypatch):
    monkeypatch.setattr(recovery, "LEAST_PERIOD_S", 0.0)
    monkeypatch.setattr(recovery, "PERIODS", 0)
    with session_of(CARDS) as session:
        training, kept_bytes = Training(), []
        own = session.stream.recovery
        for _ in range(2):
            positions = []
            for _ in range(30):
                training.step()
                positions.append(own._journal.position)
            # How soon a snapshot is there depends on the machine; that it is there does not.
            assert any(late < early for early, late in pairwise(positions)), positions
            take_snapshot(session)
            assert own._journal.size_bytes == 0
            kept_bytes.append(own.copy_bytes)
        assert 0 < kept_bytes[0] == kept_bytes[1]


def test_a_program_without_steps_has_snapshots_too(monkeypatch):
    monkeypatch.setattr(recovery, "MOST_BYTES_ANYWHERE", 100_000)
    with session_of(CARDS) as session:
        kept_bytes = []
        for i in range(200):
            own = torch.full((1000,), float(i)).to("penstock") + 1
            assert own[5].item() == i + 1
            kept_bytes.append(session.stream.recovery._journal.size_bytes)
        assert max(kept_bytes) < 300_000
        lost(session, 0)
        assert own[5].item() == 200


def test_a_sharded_model_loses_a_card_and_trains_on(monkeypatch, undisturbed):
    monkeypatch.setenv("PENSTOCK_CARD_SHARDING", "on")
    with session_of(CARDS) as session:
        training = Training()
        losses = []
        for i in range(STEPS):
            if i in {4, 9}:
                lost(session, i % 2)
            losses.append(training.step())
        assert losses == pytest.approx(undisturbed, rel=1e-5)


def test_a_program_that_is_interrupted_in_a_call_cannot_go_on():
    with session_of(CARDS) as session:
        own = split()
        session.stream.is_torn = True
        with pytest.raises(CardError, match="interrupted"):
            own.sum().item()
        with pytest.raises(CardError, match="interrupted"):
            own.sum().item()


def test_another_word_in_the_variable_is_refused(monkeypatch):
    monkeypatch.setenv("PENSTOCK_CARD_RECOVERY", "yes")
    with pytest.raises(PenstockError, match=r"invalid .PENSTOCK_CARD_RECOVERY: 'yes'"):
        recovers()
