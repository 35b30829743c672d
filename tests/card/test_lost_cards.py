"""A card that is killed or stopped: every use of the device says which one, and nothing is left."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from tests.card.support.processes import assert_gone
from tests.card.support.sessions import session_of
from tests.card.support.training import Training, losses_of

from penstock.card.link import CardError

CARDS = "cpu=1,cpu=2"
MOMENTS = int(os.environ.get("PENSTOCK_TEST_MOMENTS", "20"))
STEPS = 20
SILENT_S = 1.75 + 2  # after so long at the latest; the second part is for a busy machine


@pytest.fixture(scope="module")
def undisturbed():
    torch.set_num_threads(1)
    return losses_of(CARDS, STEPS)


def train_until_lost(undisturbed):
    """Trains again and again until a card is lost; every loss before that must be right."""
    for _ in range(100):
        training = Training()
        for expected in undisturbed:
            assert training.step() == expected
    raise AssertionError("no card was lost")


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_card_lost_in_training_is_named_and_gives_no_other_data(undisturbed, moment):
    chance = random.Random(moment)  # noqa: S311 - a moment, the same in each run
    card, number = chance.randrange(2), chance.choice([signal.SIGKILL, signal.SIGSTOP])
    lost_s = []
    with session_of(CARDS) as session:
        pids = [one.pid for one in session.cards.cards]

        def lose():
            time.sleep(chance.random())
            lost_s.append(time.monotonic())
            os.kill(pids[card], number)

        thread = threading.Thread(target=lose)
        thread.start()
        with pytest.raises(CardError) as caught:
            train_until_lost(undisturbed)
        thread.join()
        assert time.monotonic() - lost_s[0] < SILENT_S
        assert_names(caught.value, card, pids[card], number)
        with pytest.raises(CardError, match=f"^card {card}"):
            torch.ones(1, device="penstock")
        with pytest.raises(CardError, match=f"^card {card}"):
            torch.penstock.synchronize()
        assert_gone(pids)


def assert_names(error, card, pid, number):
    text = str(error)
    assert text.startswith(f"card {card} (")
    assert f"pid {pid}" in text
    assert ("signal 9" if number == signal.SIGKILL else "nothing has come from it") in text


USES = {
    "item": lambda one: one.item(),
    "backward": lambda one: one.backward(retain_graph=True),
    "synchronize": lambda _: torch.penstock.synchronize(),
    "operation": lambda one: one + 1,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    ("card", "number"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)], ids=["killed", "stopped"]
)
def test_a_card_lost_while_idle_is_named_by_every_kind_of_use(card, number, use):
    with session_of(CARDS) as session:
        own = (torch.ones(4, device="penstock", requires_grad=True) * 2).sum()
        torch.penstock.synchronize()
        pids = [one.pid for one in session.cards.cards]
        os.kill(pids[card], number)

        def use_until_lost():
            deadline_s = time.monotonic() + SILENT_S
            while time.monotonic() < deadline_s:
                use(own)

        with pytest.raises(CardError) as caught:
            use_until_lost()
        assert_names(caught.value, card, pids[card], number)
        assert_gone(pids)


PROGRAM = """
import os, signal, sys, time
import torch
torch.set_num_threads(1)
own = torch.ones(6, 4, device="penstock")
from penstock.card.device.start import session
pids = [one.pid for one in session().cards.cards]
print(*pids, flush=True)
"""


SLOW = "ignore:slow on device penstock"  # warnings of lines that wait for the cards


def run(text, seconds=60):
    """Runs a program on two cards; returns its exit code, its output, and the workers' pids."""
    done = subprocess.run(
        [sys.executable, "-W", SLOW, "-c", PROGRAM + text],
        env={**os.environ, "PENSTOCK_CARD": CARDS},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    first, _, rest = done.stdout.partition("\n")
    assert_gone([int(pid) for pid in first.split()])
    return done.returncode, rest.strip(), done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_program_that_lost_a_card_ends_in_order(number):
    code, out, err = run(f"""
os.kill(pids[1], {int(number)})
try:
    while True: own.sum().item()
except Exception as error:
    print(type(error).__name__)
    del error
""")
    assert (code, out, err) == (0, "CardError", "")


def test_a_program_that_is_stopped_for_a_while_goes_on():
    code, out, err = run("""
if os.fork() == 0:
    time.sleep(5)
    os.kill(os.getppid(), signal.SIGCONT)
    os._exit(0)
os.kill(os.getpid(), signal.SIGSTOP)
os.wait()
print(own.sum().item())
""")
    assert (code, out, err) == (0, "24.0", "")


def test_a_forked_child_cannot_use_the_device_and_its_parent_goes_on():
    code, out, err = run("""
if os.fork() == 0:
    for use in (lambda: own + 1, lambda: own.cpu(), lambda: torch.ones(1, device="penstock")):
        try:
            use()
        except RuntimeError as error:
            print("spawn" in str(error), flush=True)
    sys.exit(0)
print(os.wait()[1], flush=True)
print(own.sum().item())
""")
    assert (code, out.split(), err) == (0, ["True", "True", "True", "0", "24.0"], "")


def test_a_loader_with_forked_workers_feeds_a_training():
    code, out, err = run("""
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(24.0).view(6, 4))
print(sum((own[:3] * batch.to("penstock")).sum().item()
          for (batch,) in DataLoader(data, batch_size=3, num_workers=2)))
""")
    assert (code, out, err) == (0, str(float(sum(range(24)))), "")
