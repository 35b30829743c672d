"""Traces for Perfetto: what is in the file, and that it harms no program whatever happens."""

import json
import os
import signal
import subprocess
import time
from collections import defaultdict

import pytest
import torch
from tests.agent.conftest import wait_until
from tests.card.support.sessions import session_of
from tests.card.support.training import Training
from tests.card.support.watched import Watched

from penstock.card import PenstockCardWarning, trace, trace_file
from penstock.card.device import tracing
from penstock.card.device.kernel import Kernel
from penstock.card.frames import Kind
from penstock.card.trace_file import Event, TraceFile
from penstock.model import PenstockError

CARDS = "cpu=1,cpu=2,cpu=4"


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """The events of two steps of a training, and its losses with the trace and without."""
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    with session_of(CARDS):
        plain = Training()
        plain_losses = [plain.step() for _ in range(3)]
    with session_of(CARDS):
        training = Training()
        losses = [training.step()]
        with trace(file):
            losses += [training.step() for _ in range(2)]
    assert losses == plain_losses
    return json.loads(file.read_text())


def lasting(events, process=None):
    return [one for one in events if one["ph"] == "X" and process in {None, one["pid"]}]


def names(events, process):
    return {one["name"] for one in lasting(events, process)}


# The file.


def test_each_event_is_one_that_perfetto_knows(events):
    for one in events:
        assert isinstance(one["name"], str)
        assert isinstance(one["pid"], int)
        assert one["ph"] in {"X", "M", "C"}
        if one["ph"] == "X":
            assert one.keys() - {"args"} == {"ph", "name", "pid", "tid", "ts", "dur"}
            assert one["ts"] >= 0
            assert one["dur"] > 0


def test_the_program_and_each_card_have_named_tracks(events):
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert processes[1] == "program"
    assert [processes[i][:7] for i in (2, 3, 4)] == ["card 0:", "card 1:", "card 2:"]
    tracks = {(one["pid"], one["tid"]): one["args"]["name"]
              for one in events if one["name"] == "thread_name"}  # fmt: skip
    assert tracks[1, 1] == "MainThread"
    assert tracks[2, 1] == "operations"
    assert tracks[2, 2] == "waits and exchanges"
    assert {(one["pid"], one["tid"]) for one in lasting(events)} <= tracks.keys()


def test_events_of_a_track_are_nested_or_one_after_another(events):
    tracks = defaultdict(list)
    for one in lasting(events):
        begin = round(one["ts"] * 1000)
        tracks[one["pid"], one["tid"]].append((begin, -round(one["dur"] * 1000), one["name"]))
    assert len(tracks) >= 7
    for track in tracks.values():
        open_until = []
        for begin, minus_duration, name in sorted(track):
            end = begin - minus_duration
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], name
            open_until.append(end)


def test_operations_exchanges_and_waits_are_there_with_their_bytes(events):
    for card in (2, 3, 4):
        found = names(events, card)
        assert {"aten::convolution", "aten::convolution_backward", "upload", "sum"} <= found
        assert "waits for the program" in found
        sizes = [one for one in lasting(events, card) if one["name"] == "sum"]
        assert all(one["args"]["bytes"] > 0 for one in sizes)
        assert any(one["ph"] == "C" and one["pid"] == card for one in events)
    assert "download" in names(events, 2)  # the loss is whole: the first card gives it
    assert {"aten::convolution", "upload", "waits for the cards"} <= names(events, 1)


def test_all_cards_do_the_same_in_the_same_order(events):
    def done(card):
        return [one["name"] for one in sorted(lasting(events, card), key=lambda one: one["ts"])
                if one["name"].startswith(("aten::", "penstock::"))]  # fmt: skip

    assert done(2) == done(3) == done(4)
    assert done(2).count("aten::convolution_backward") == 2


def test_the_clocks_of_cards_fit_the_program_s(events):
    # A card executes an operation after the program has called it, and before the program's wait
    # for the loss has ended.
    def first(process, name):
        return min(one["ts"] for one in lasting(events, process) if one["name"] == name)

    end = max(one["ts"] + one["dur"] for one in lasting(events, 1))
    for card in (2, 3, 4):
        assert first(1, "aten::convolution") < first(card, "aten::convolution") < end


def test_a_clock_that_is_ahead_is_corrected():
    class Link:
        ahead_ns = 0

        def request(self, kind, body):
            assert kind == Kind.TRACE
            now_ns = time.monotonic_ns() + self.ahead_ns
            return type("Reply", (), {"result": lambda _: now_ns.to_bytes(8, "little")})()

    link = Link()
    assert tracing._offset_ns(link, b"") == 0
    link.ahead_ns = 5 * 10**9
    assert tracing._offset_ns(link, b"") == pytest.approx(5 * 10**9, abs=10**7)


# Beginning and end.


def test_after_a_trace_calls_cost_what_they_did_before(cards, tmp_path):
    plain = Kernel.__call__
    with trace(tmp_path / "trace.json"):
        assert Kernel.__call__ is not plain
        torch.ones(4, device="penstock").sum().item()
    assert Kernel.__call__ is plain
    assert cards.stream.on_wait is None


def test_a_second_trace_at_the_same_time_is_refused(cards, tmp_path):
    with trace(tmp_path / "first.json"):
        with (
            pytest.raises(PenstockError, match="is taking one already"),
            trace(tmp_path / "second.json"),
        ):
            pass
        torch.ones(4, device="penstock").sum().item()
    assert "aten::sum" in names(json.loads((tmp_path / "first.json").read_text()), 1)
    with trace(tmp_path / "third.json"):
        pass
    assert json.loads((tmp_path / "third.json").read_text())


def test_a_file_that_cannot_be_made_is_named(cards, tmp_path):
    with (
        pytest.raises(PenstockError, match=r"no trace can be written to .*No such file"),
        trace(tmp_path / "no folder" / "trace.json"),
    ):
        pass
    with trace(tmp_path / "trace.json"):
        pass


def test_an_error_of_the_program_ends_the_trace_in_order(cards, tmp_path):
    def program():
        with trace(tmp_path / "trace.json"):
            torch.ones(4, device="penstock").sum().item()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert "aten::sum" in names(json.loads((tmp_path / "trace.json").read_text()), 1)


def test_a_trace_follows_the_program_to_other_cards(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_file, "_PERIOD_S", 0.02)
    from penstock.card.card_list import parse_cards

    with session_of("cpu=1,cpu=2") as session:
        training = Training()
        with trace(tmp_path / "trace.json"):
            training.step()
            session.replace_cards(parse_cards("cpu=3,cpu=1"))
            wait_until(lambda: session.cards.on_trace is not None)  # the trace has followed
            training.step()
    found = json.loads((tmp_path / "trace.json").read_text())
    for process in (2, 3, 4, 5):
        assert "aten::convolution" in names(found, process)


# Whole programs.


def test_the_environment_takes_a_trace_of_a_whole_program(tmp_path):
    with Watched(tmp_path, steps=4, PENSTOCK_CARD_TRACE=str(tmp_path / "%p.json")) as program:
        assert program.wait_end() == ""
        found = json.loads((tmp_path / f"{program.pid}.json").read_text())
    called = [one["name"] for one in lasting(found, 1) if one["name"].startswith("aten::sort")]
    assert len(called) == 4
    gathers = [one for one in lasting(found, 2) if one["name"] == "gather"]
    assert len(gathers) == 4
    # The first of the three cards has a seventh of the rows, and gets the others.
    assert {one["args"]["bytes"] for one in gathers} == {768 * 10 * 4 + 2}


def test_the_trace_of_a_killed_program_can_be_read(tmp_path):
    file = tmp_path / "trace.json"
    with Watched(tmp_path, PENSTOCK_CARD_TRACE=str(file)) as program:
        end_s = time.monotonic() + 40
        while (not file.exists() or file.stat().st_size < 100_000) and time.monotonic() < end_s:
            time.sleep(0.05)
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()
    text = file.read_text()
    assert not text.endswith("]\n")
    found = json.loads(text.rstrip().rstrip(",") + "]")  # as its readers take it
    assert "aten::addmm" in names(found, 2)


def test_a_program_whose_trace_cannot_be_made_is_warned_and_works(tmp_path):
    with Watched(tmp_path, steps=2, PENSTOCK_CARD_TRACE="/no/such/folder/t.json") as program:
        errors = program.wait_end()
    assert "PenstockCardWarning: $PENSTOCK_CARD_TRACE: no trace can be written" in errors


def test_a_program_that_is_interrupted_while_a_card_stands_still_ends_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "END_S", 0.5)
    with session_of("cpu=1,cpu=1") as session:
        torch.ones(4, device="penstock").sum().item()
        began_s = None
        with trace(tmp_path / "trace.json"):
            os.kill(session.cards.cards[1].pid, signal.SIGSTOP)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 1.5  # before the card counts as lost
        os.kill(session.cards.cards[1].pid, signal.SIGCONT)
    assert json.loads((tmp_path / "trace.json").read_text())


# Disks and bounds.


def test_on_a_full_disk_the_program_is_warned_and_goes_on(cards, tmp_path):
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")

    def program():
        with trace(small / "trace.json"):
            own = torch.ones(4, device="penstock")
            for _ in range(3000):
                own = own + 0
            return own.sum().item()

    try:
        with pytest.warns(PenstockCardWarning, match="ends here: No space left"):
            assert program() == 4
        assert json.loads((small / "trace.json").read_text())
        assert torch.ones(4, device="penstock").sum().item() == 4
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_file_that_gets_too_large_is_ended_with_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_file, "MOST_FILE_BYTES", 10_000)
    told = []
    file = TraceFile(tmp_path / "trace.json", 0)
    file.on_problem = told.append
    for i in range(20_000):
        file.add(Event(1, 1, "aten::add", i * 10, 5, 8))
    file.close()
    assert "trace fewer steps" in told[0]
    assert len(json.loads((tmp_path / "trace.json").read_text())) == 10_000


def test_events_that_come_faster_than_they_are_written_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_file, "MOST_WAITING", 100)
    file = TraceFile(tmp_path / "trace.json", 0)
    for i in range(5000):
        file.add(Event(1, 1, "aten::add", i * 10, 5, 8))
    file.close()
    count = len(json.loads((tmp_path / "trace.json").read_text()))
    assert count + file.left_out == 5000
    assert file.left_out > 0


def test_a_name_that_is_no_plain_text_is_written_as_json(tmp_path):
    file = TraceFile(tmp_path / "trace.json", 0)
    file.add(Event(1, 1, 'a "name"\n\udcff', 10, 5, 0))
    file.name_process(1, '"')
    file.close()
    found = json.loads((tmp_path / "trace.json").read_text())
    assert found[0]["name"] == 'a "name"\n\udcff'


def test_an_empty_trace_is_an_empty_list(tmp_path):
    TraceFile(tmp_path / "trace.json", 0).close()
    assert json.loads((tmp_path / "trace.json").read_text()) == []
