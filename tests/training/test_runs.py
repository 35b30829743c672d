"""A run is supervised to its end, whatever its program does, and is kept."""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest
from tests.training.conftest import penstock, python

from penstock.cli.commands import train
from penstock.cli.options import Output
from penstock.model import PenstockError
from penstock.policy.document import Document
from penstock.training import supervisor
from penstock.training.document import API_VERSION, checked
from penstock.training.run import create, find, projects_folder, runs
from penstock.training.supervisor import Supervisor

WITHIN_S = 20


def job(command, name="own", **spec):
    return checked(Document({
        "apiVersion": API_VERSION, "kind": "TrainJob", "metadata": {"project": "p", "name": name},
        "spec": {"command": command, "cards": ["cpu"], **spec},
    }), "test")  # fmt: skip


def supervised(command, name="own", **spec):
    run = create(job(command, name, **spec))
    return run, Supervisor(run).run()


@contextlib.contextmanager
def beside(command, **spec):
    """A supervisor whose program runs."""
    run = create(job(command, **spec))
    own = Supervisor(run)
    lock, states = run.lock(), []
    thread = threading.Thread(target=lambda: states.append(own.run()))
    thread.start()
    wait_for(lambda: run.state().phase == "running")
    yield run, own, states
    own.stop()
    thread.join(WITHIN_S)
    os.close(lock)


def wait_for(holds, within_s=WITHIN_S):
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def names_of(run):
    return [one.event for one in run.events()]


def test_a_program_that_succeeds_is_kept_with_its_output():
    run, state = supervised(python("print('hello'); import sys; print('oh', file=sys.stderr)"))
    assert (state.phase, state.code, state.attempt) == ("succeeded", 0, 1)
    assert run.output.read_text().split() == ["hello", "oh"]
    assert run.state() == state
    assert find("own") == find("p/own") == run
    assert names_of(run) == ["started", "succeeded"]


FAILS_TWICE = """
import os, sys
print("attempt", os.environ["PENSTOCK_TRAIN_ATTEMPT"])
sys.exit(0 if os.environ["PENSTOCK_TRAIN_ATTEMPT"] == "3" else 5)
"""


def test_a_program_that_fails_is_started_again_as_often_as_the_job_says(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    run, state = supervised(python(FAILS_TWICE), restarts=2)
    assert (state.phase, state.attempt) == ("succeeded", 3)
    assert run.output.read_text().split() == ["attempt", "1", "attempt", "2", "attempt", "3"]
    run, state = supervised(python(FAILS_TWICE), name="other", restarts=1)
    assert (state.phase, state.code, state.attempt) == ("failed", 5, 2)
    assert state.reason == "the program ended with exit code 5"


def test_a_program_that_a_signal_ends_has_failed_by_it():
    _, state = supervised(python("import os; os.kill(os.getpid(), 11)"))
    assert (state.phase, state.code) == ("failed", -11)
    assert state.reason == "the program was ended by signal SIGSEGV"


def test_a_program_that_is_not_there_is_not_tried_again():
    run, state = supervised(["/nowhere/python"], restarts=5)
    assert (state.phase, state.code, state.attempt) == ("failed", 127, 1)
    assert "/nowhere/python cannot be started: No such file" in run.events()[0].text
    assert state.reason == run.events()[0].text


def test_a_run_that_is_stopped_ends_with_its_children():
    text = "import subprocess, time; print(subprocess.Popen(['sleep', '100']).pid); time.sleep(100)"
    with beside(python(text), restarts=3) as (run, own, states):
        wait_for(lambda: run.output.read_text().endswith("\n"))
        child = int(run.output.read_text())
        own.stop()
        wait_for(lambda: states)
        assert (states[0].phase, states[0].code) == ("stopped", -signal.SIGTERM)
        wait_for(lambda: not is_there(child))


def is_there(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_program_that_ignores_the_order_is_killed_after_its_grace():
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on'); time.sleep(100)"
    with beside(python(text), grace="300ms") as (run, own, states):
        wait_for(lambda: "on" in run.output.read_text())
        own.stop()
        wait_for(lambda: states)
        assert (states[0].phase, states[0].code) == ("stopped", -signal.SIGKILL)


def test_a_run_that_waits_to_be_started_again_can_be_stopped(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 1000.0)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_S", 1000.0)
    run = create(job(python("raise SystemExit(1)"), restarts=9))
    own, states = Supervisor(run), []
    thread = threading.Thread(target=lambda: states.append(own.run()))
    thread.start()
    lock = run.lock()
    wait_for(lambda: run.state().phase == "restarting")
    assert "it is started again in 1000 s (9 left)" in run.state().reason
    own.stop()
    thread.join(WITHIN_S)
    os.close(lock)
    assert states[0].phase == "stopped"


def test_a_full_disk_does_not_end_the_training(monkeypatch, capsys):
    run = create(job(python("print('done')")))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(run), "write_state", full)
    assert Supervisor(run).run().phase == "succeeded"
    assert "cannot keep the state of run p/own: No space left on device" in capsys.readouterr().err


def test_what_a_job_calls_its_outputs_is_kept_with_the_run(tmp_path, capsys):
    text = "mkdir -p out/deep; echo 1 > out/deep/model; echo 2 > last; ln -s last link"
    outputs = ["out", "last", "link", "out/deep"]
    run, state = supervised(["sh", "-c", text], folder=str(tmp_path), outputs=outputs)
    assert (state.phase, state.code) == ("succeeded", 0)
    kept = run.folder / "outputs"
    (tmp_path / "last").write_text("of the next run")
    assert [(kept / one).read_text() for one in ("out/deep/model", "last", "link")] == [
        "1\n", "2\n", "2\n",
    ]  # fmt: skip
    train.status("own")
    assert f"outputs in {kept}" in capsys.readouterr().out


def test_a_run_without_its_outputs_has_failed_and_says_which_are_missing(tmp_path):
    (tmp_path / "here").touch()
    run, state = supervised(
        ["true"], folder=str(tmp_path), outputs=["here", "a", "b/c"], restarts=3
    )
    assert (state.phase, state.code, state.attempt) == ("failed", 1, 1)
    assert "has not made a, b/c" in state.reason
    assert not (run.folder / "outputs").exists()


def test_outputs_for_which_there_is_no_room_are_still_where_they_were(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "model").touch()
    monkeypatch.setattr("shutil.copy2", full)
    run, state = supervised(["true"], folder=str(tmp_path), outputs=["model"])
    assert state.phase == "failed"
    assert "No space left on device; they are still in" in state.reason
    assert list(run.folder.glob("outputs*")) == []


class Listener(http.server.BaseHTTPRequestHandler):
    """Notes what is posted."""

    told: ClassVar[list[dict]] = []

    def do_POST(self):
        self.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_webhook_is_told_of_failures_and_may_be_away(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/alarms"
        supervised(python("raise SystemExit(3)"), restarts=1, webhook=address)
        server.shutdown()
        thread.join()
    assert [(one["run"], one["event"]) for one in Listener.told] == [
        ("p/own", "restarting"), ("p/own", "failed"),
    ]  # fmt: skip
    assert "ended with exit code 3" in Listener.told[1]["text"]
    run, state = supervised(python("raise SystemExit(3)"), name="other", webhook=address)
    assert state.phase == "failed"
    assert run.events()[-1].event == "alarm-not-sent"
    assert "refused" in run.events()[-1].text


def test_a_run_that_found_no_room_for_its_last_state_is_known_by_its_last_event(monkeypatch):
    run = create(job(python("raise SystemExit(4)")))
    own = Supervisor(run)
    lock = run.lock()
    former = type(run).write_state

    def full(self, state):
        if state.phase == "failed":
            raise OSError(28, "No space left on device")
        former(self, state)

    monkeypatch.setattr(type(run), "write_state", full)
    own.run()
    os.close(lock)
    assert (run.state().phase, run.state().reason) == (
        "failed",
        "the program ended with exit code 4",
    )


def test_a_run_that_found_no_room_leaves_its_name_to_the_next(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.training.run.write_json", full)
        with pytest.raises(PenstockError, match="No space left on device"):
            create(job(["true"]))
    assert list(projects_folder().glob("*/*")) == []
    (projects_folder() / "p" / "own").mkdir()  # left by one that was killed
    assert create(job(["true"])).name == "own"


BROKEN = {
    "state.json": ["[]", '{"phase": "running", "pid": "x"}', '{"pid": 3}', "", "null"],
    "job.json": ["5", "{", '{"kind": "TrainJob"}'],
}


@pytest.mark.parametrize(("file", "text"), [(f, t) for f, texts in BROKEN.items() for t in texts])
def test_a_broken_run_hides_no_other_and_can_be_removed(file, text, capsys):
    run, _ = supervised(["true"])
    create(job(["true"], name="other"))
    (run.folder / file).write_text(text)
    train.list_runs(output=Output.json)
    told = capsys.readouterr().out
    assert "unreadable" in told
    assert "p/other" in told
    train.status("own")
    assert "cannot read" in capsys.readouterr().out
    train.rm(["own", "own"])
    assert [str(one) for one in runs()] == ["p/other"]


def test_lines_that_are_no_events_are_left_out():
    run, _ = supervised(["true"])
    with run.events_file.open("a") as file:
        file.write(
            '5\n{"time": "a", "event": 1}\nnull\n{"time": 1, "event": "last", "text": "x"}\n{"ti'
        )
    assert names_of(run) == ["started", "succeeded", "last"]
    train.status("own")


def test_names_are_given_in_turn_and_never_twice():
    first = create(job(["true"], name=None))
    second = create(job(["true"], name=None))
    assert [first.name, second.name] == ["run-1", "run-2"]
    with pytest.raises(PenstockError, match="project p has a run run-1 already"):
        create(job(["true"], name="run-1"))
    assert runs() == [first, second]


@pytest.mark.parametrize("name", ["nothing", "p/../p/own", "../../etc", "", "*"])
def test_a_run_that_is_not_there_is_no_file_elsewhere(name):
    create(job(["true"]))
    with pytest.raises(PenstockError, match="there is no run"):
        find(name)


def test_a_run_of_the_same_name_in_two_projects_is_asked_for():
    create(job(["true"]))
    other = job(["true"]).model_copy(update={"metadata": job(["true"]).metadata.model_copy(
        update={"project": "q"})})  # fmt: skip
    create(other)
    with pytest.raises(PenstockError, match=r"several projects have a run own: p/own, q/own"):
        find("own")
    assert find("q/own").project == "q"


TICKS = "import time\nfor i in range(1000): print(i); time.sleep(0.05)"


def submitted(tmp_path, text=TICKS, more=""):
    file = tmp_path / "job.yaml"
    (tmp_path / "program.py").write_text(text)
    file.write_text(f"""\
apiVersion: penstock.io/v1alpha1
kind: TrainJob
metadata: {{project: p, name: own}}
spec:
  command: [{sys.executable}, program.py]
  cards: [cpu]
{more}""")
    done = penstock("train", "submit", file)
    assert (done.returncode, done.stdout) == (0, "p/own\n"), done.stderr
    return find("own")


def test_a_program_goes_on_when_its_supervisor_is_killed_and_can_be_stopped(tmp_path):
    run = submitted(tmp_path)
    wait_for(lambda: run.state().phase == "running")
    os.kill(run.supervisor(), signal.SIGKILL)
    wait_for(lambda: run.state().phase == "unwatched")
    before = run.output.read_text()
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "train", "logs", "-f", "own"], stdout=subprocess.PIPE
    ) as follower:
        wait_for(lambda: len(run.output.read_text()) > len(before) + 100)
        assert follower.poll() is None, "the run is not over"
        follower.kill()
    assert "is unwatched" in penstock("train", "rm", "own").stderr
    pid = run.state().pid
    assert penstock("train", "stop", "own").stdout == "p/own stopped\n"
    assert not is_there(pid)
    assert penstock("train", "rm", "own").stdout == "p/own removed\n"
    assert runs() == []


def test_a_run_whose_machine_restarted_is_lost(tmp_path):
    run = submitted(tmp_path)
    wait_for(lambda: run.state().phase == "running")
    supervisor_pid, pid = run.supervisor(), run.state().pid
    os.kill(supervisor_pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: run.state().phase == "lost")
    assert "p/own is lost" in penstock("train", "stop", "own").stderr.replace("run ", "")


def test_a_submitted_run_is_listed_followed_and_stopped(tmp_path):
    run = submitted(tmp_path)
    wait_for(lambda: run.output.exists() and "5" in run.output.read_text())
    assert " running " in penstock("train", "ls").stdout
    stopper = threading.Timer(1.0, lambda: penstock("train", "stop", "own"))
    stopper.start()
    followed = penstock("train", "logs", "-f", "own")
    stopper.join()
    assert followed.stdout.startswith("0\n1\n2\n")
    assert followed.stdout == run.output.read_text()
    shown = penstock("train", "status", "own").stdout
    assert "stopped (it was told to stop)" in shown
    assert "stopping  it was told to stop" in shown
