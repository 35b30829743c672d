"""Cards that other machines serve: reached by address, lost and found again, for one program."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.card.support.processes import assert_gone
from tests.card.support.sessions import session_of
from tests.card.support.training import Training, losses_of

from penstock.card import served_cards
from penstock.card.card_list import parse_cards, with_addresses
from penstock.card.cards import start_cards
from penstock.card.credentials import Credentials, write
from penstock.card.link import CardError
from penstock.model import PenstockError

STEPS = 20


@pytest.fixture(autouse=True)
def of_program(monkeypatch, credentials):
    monkeypatch.setenv("PENSTOCK_CARD_CREDENTIALS", str(credentials / "program"))
    monkeypatch.setenv("PENSTOCK_CARD_RECOVERY", "on")
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def undisturbed():
    torch.set_num_threads(1)
    return losses_of("cpu=1,cpu=1", STEPS)


def test_a_training_on_a_card_here_and_one_elsewhere_has_the_results_of_cards_here(
    serving, undisturbed
):
    assert losses_of(f"cpu=1,{serving().card}", STEPS) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_served_worker_that_is_lost_is_followed_by_the_one_that_stands_by(
    serving, undisturbed, number
):
    served = serving()
    with session_of(f"cpu=1,{served.card}") as session:
        training = Training()
        losses = [training.step() for _ in range(STEPS // 2)]
        torch.penstock.synchronize()
        pid = session.cards.cards[1].pid
        os.kill(pid, number)
        losses += [training.step() for _ in range(STEPS // 2)]
        assert losses == undisturbed
        assert session.cards.cards[1].pid != pid
        assert_gone([pid])
    assert f"worker {pid} was killed by signal 9" in served.end()


def test_a_training_waits_until_a_killed_service_is_started_again(serving, undisturbed):
    served = serving()
    with session_of(f"cpu=1,{served.card}") as session:
        training = Training()
        losses = [training.step() for _ in range(STEPS // 2)]
        worker = session.cards.cards[1].pid
        served.process.kill()
        served.process.wait()
        assert_gone([worker])
        command = ["sh", "-c", 'sleep 1; exec "$@"', "-", *served.process.args]
        command[-3] = f"--listen=127.0.0.1:{served.port}"
        again = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            losses += [training.step() for _ in range(STEPS // 2)]
            assert losses == undisturbed
        finally:
            again.terminate()
            again.wait(20)


def test_a_card_serves_one_program_at_a_time_and_the_next_once_that_has_left(serving):
    served = serving()
    code = (
        "import torch\nprint(torch.ones(3, device='penstock').sum().item(), flush=True)\ninput()\n"
    )
    environment = {**os.environ, "PENSTOCK_CARD": served.card}
    other = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert other.stdout.readline() == "3.0\n"
    with pytest.raises(PenstockError, match="another program uses it; wait until that has ended"):
        start_cards(parse_cards(served.card))
    other.communicate("\n", timeout=30)
    assert other.returncode == 0
    deadline_s = time.monotonic() + 10
    while True:  # its end comes over the network
        try:
            cards = start_cards(parse_cards(served.card))
            break
        except PenstockError:
            assert time.monotonic() < deadline_s
    cards.close()


ONCE = ("--once", "--wait=60s")


def test_a_card_for_one_run_serves_its_programs_until_it_is_told_that_the_run_is_over(serving):
    served = serving(more=ONCE)
    places = parse_cards(served.card)
    for _ in range(2):
        start_cards(places).close()  # in order, as a program that failed
    cards = start_cards(places)
    os.kill(cards.cards[0].pid, signal.SIGKILL)
    cards.close()
    assert served_cards.dismiss(places, os.environ) == []
    assert served.process.wait(20) == 0
    assert "its run is over" in served.process.stderr.read()
    (said,) = served_cards.dismiss(places, os.environ)
    assert said.startswith(f"card 127.0.0.1:{served.port} was not told that the run is over")


def test_a_card_that_was_told_of_its_runs_end_serves_the_program_that_is_there_to_its_end(serving):
    served = serving(more=ONCE)
    places = parse_cards(served.card)
    cards = start_cards(places)
    assert served_cards.dismiss(places, os.environ) == []
    with pytest.raises(subprocess.TimeoutExpired):
        served.process.wait(1)
    cards.close()
    assert served.process.wait(20) == 0


def test_a_card_for_one_run_waits_only_so_long_for_its_program(serving):
    served = serving(more=("--once", "--wait=1s"))
    assert served.process.wait(20) == 0
    assert "no program came for 1 s" in served.process.stderr.read()


@pytest.mark.parametrize(("more", "code"), [((), 0), (ONCE, 143)], ids=["for ever", "once"])
def test_a_card_that_is_told_to_end_has_served_its_run_only_if_it_has_none(serving, more, code):
    served = serving(more=more)  # and is forking its first worker just now
    served.end()
    assert served.process.returncode == code


def test_a_card_without_a_run_goes_on_when_one_is_over(serving):
    served = serving()
    places = parse_cards(served.card)
    assert served_cards.dismiss(places, os.environ) == []
    start_cards(places).close()


def test_a_program_waits_for_its_cards_as_long_as_its_environment_says(monkeypatch):
    assert served_cards.comes_within_s() == 300
    monkeypatch.setenv("PENSTOCK_CARD_WAIT", "1m30s")
    assert served_cards.comes_within_s() == 90
    monkeypatch.setenv("PENSTOCK_CARD_WAIT", "soon")
    with pytest.raises(PenstockError, match="write PENSTOCK_CARD_WAIT=1h"):
        served_cards.comes_within_s()


def test_others_credentials_are_turned_away(serving, tmp_path, monkeypatch):
    served = serving()
    write(tmp_path / "others", 2)
    monkeypatch.setenv("PENSTOCK_CARD_CREDENTIALS", str(tmp_path / "others" / "program"))
    with pytest.raises(CardError, match="cannot be reached"):
        start_cards(parse_cards(served.card))


def test_a_card_that_nobody_serves_is_an_error_with_its_address(monkeypatch):
    monkeypatch.setattr(served_cards, "COMES_WITHIN_S", 0.5)
    with pytest.raises(CardError, match=r"nobody listens there.* at 127\.0\.0\.1:9$"):
        start_cards(parse_cards("tcp:127.0.0.1:9=1"))


def test_a_card_that_is_not_there_is_not_served(serving):
    served = serving(card="cuda:7")
    assert served.process.wait(20) == 2
    assert "cuda" in served.first, served.first


@pytest.mark.parametrize("missing", ["token", "key.pem"])
def test_credentials_that_are_not_there_are_named(credentials, tmp_path, missing):
    folder = tmp_path / "worker"
    folder.mkdir()
    for file in (credentials / "worker").iterdir():
        if file.name != missing:
            (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(PenstockError, match=re.escape(str(folder / missing))):
        Credentials.read(folder)


def test_credentials_are_private_and_never_overwritten(credentials):
    files = [one for one in credentials.rglob("*") if one.is_file()]
    assert len(files) == 8
    assert {one.stat().st_mode & 0o077 for one in [*files, credentials / "program"]} == {0}
    before = {one: one.read_bytes() for one in files}
    with pytest.raises(PenstockError, match="File exists"):
        write(credentials, 2)
    assert {one: one.read_bytes() for one in files} == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tcp:gpu1", "it is not tcp:HOST:PORT"),
        ("tcp:gpu1:x", "it is not tcp:HOST:PORT"),
        ("tcp::7700", "it is not tcp:HOST:PORT"),
        ("tcp:gpu1:0", "it is not tcp:HOST:PORT"),
        ("tcp:gpu1:7700@1000", "what serves a card has its limit"),
    ],
)
def test_an_invalid_address_is_named(text, why):
    with pytest.raises(PenstockError, match=why):
        parse_cards(text)


def test_cards_here_are_reached_from_where_the_others_are():
    here, there = with_addresses(parse_cards("cpu,tcp:[::1]:7700"))
    assert (here.host, there.host, there.port) == ("::1", "::1", 7700)


def test_without_credentials_the_error_says_how_to_make_them(monkeypatch):
    monkeypatch.delenv("PENSTOCK_CARD_CREDENTIALS")
    with pytest.raises(PenstockError, match="penstock card credentials FOLDER"):
        start_cards(parse_cards("tcp:127.0.0.1:9"))


def test_credentials_hold_for_the_days_that_were_asked(credentials):
    from cryptography import x509

    text = (Path(credentials) / "program" / "certificate.pem").read_bytes()
    left = x509.load_pem_x509_certificate(text).not_valid_after_utc.timestamp() - time.time()
    assert 1.9 < left / 86400 <= 2


def test_a_training_run_names_a_served_card_and_its_credentials(
    serving, credentials, tmp_path, monkeypatch
):
    monkeypatch.delenv("PENSTOCK_CARD_CREDENTIALS")
    monkeypatch.setenv("PENSTOCK_TRAIN_DIR", str(tmp_path / "runs"))
    code = "import torch; print(torch.ones(6, 2).to('cuda').sum().item())"
    cards = f"--cards=cpu=1,{serving().card}"

    def run(folder):
        return subprocess.run(
            [sys.executable, "-m", "penstock", "train", "run", cards, f"--credentials={folder}",
             "--", sys.executable, "-c", code],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    done = run(credentials / "program")
    assert (done.returncode, done.stdout) == (0, "12.0\n"), done.stderr
    done = run(tmp_path / "nowhere")
    assert done.returncode != 0
    assert f"cannot read {tmp_path / 'nowhere' / 'certificate.pem'}" in done.stderr
    assert [one.name for one in (tmp_path / "runs").glob("*/*")] == ["run-1"]
