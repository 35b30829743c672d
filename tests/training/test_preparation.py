"""A job's data are prepared before its program: in order, once, and again after a change."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.conftest import penstock
from tests.training.test_documents import GOOD, written
from tests.training.test_runs import names_of, wait_for

from penstock.model import PenstockError
from penstock.policy.document import Document
from penstock.training import contents as module
from penstock.training import supervisor
from penstock.training.contents import contents
from penstock.training.data import Data, problems_of
from penstock.training.document import API_VERSION, checked, load_job
from penstock.training.run import create, find
from penstock.training.step_process import LONGEST_LINE_BYTES
from penstock.training.supervisor import Supervisor

numbers = iter(range(1000))


def step(name, text, outputs, **more):
    return {"name": name, "command": ["sh", "-c", text], "outputs": outputs, **more}


def job(folder, steps, command=("true",), parallel=1, **spec):
    return checked(Document({
        "apiVersion": API_VERSION, "kind": "TrainJob",
        "metadata": {"project": "p", "name": f"run{next(numbers)}"},
        "spec": {"command": list(command), "cards": ["cpu"], "folder": str(folder),
                 "data": {"prepare": steps, "parallel": parallel}, **spec},
    }), "test")  # fmt: skip


def prepared(folder, steps, **spec):
    """A run to its end, and the event that says what was prepared."""
    run = create(job(folder, steps, **spec))
    state = Supervisor(run).run()
    said = [one.text for one in run.events() if one.event in {"prepared", "prepare-failed"}]
    return run, state, said[-1]


@contextlib.contextmanager
def beside(made):
    """A run that is supervised meanwhile."""
    run, states = create(made), []
    own, lock = Supervisor(run), None
    lock = run.lock()
    thread = threading.Thread(target=lambda: states.append(own.run()))
    thread.start()
    yield run, own, states
    own.stop()
    thread.join(20)
    os.close(lock)


TOKENS = step("tokens", "echo run >> count; cat raw > tokens", ["tokens"], inputs=["raw"])


# In order.


def test_steps_are_done_before_the_program_each_after_those_it_depends_on(tmp_path):
    steps = [
        step("last", "cat a b > c; echo last", ["c"], after=["left", "right"], inputs=["a", "b"]),
        step("right", "cat raw > b; echo right", ["b"], after=["first"]),
        step("left", "cat raw > a; echo left", ["a"], after=["first"], inputs=["raw"]),
        step("first", "echo x > raw; echo first >&2", ["raw"]),
    ]
    run, state, _ = prepared(tmp_path, steps, command=["cat", "c"])
    assert state.phase == "succeeded"
    lines = run.output.read_text().splitlines()
    assert lines[0] == "[first] first"
    assert sorted(lines[1:3]) == ["[left] left", "[right] right"]
    assert lines[3:] == ["[last] last", "x", "x"]
    assert names_of(run) == ["prepared", "started", "succeeded"]
    assert set(state.steps.values()) == {"done"}


@pytest.mark.parametrize(("parallel", "most"), [(1, 1), (2, 2)])
def test_no_more_steps_run_at_the_same_time_than_the_job_says(tmp_path, parallel, most):
    text = "mkdir on.$0; ls -d on.* | wc -l >> seen; sleep 0.4; rmdir on.$0; touch $0"
    steps = [
        {"name": f"s{i}", "command": ["sh", "-c", text, f"o{i}"], "outputs": [f"o{i}"]}
        for i in range(4)
    ]
    prepared(tmp_path, steps, parallel=parallel)
    assert max(map(int, (tmp_path / "seen").read_text().split())) == most


def test_lines_of_steps_do_not_mix_and_endless_ones_are_broken(tmp_path):
    long = f"head -c {3 * LONGEST_LINE_BYTES} /dev/zero | tr '\\0' x; touch a"
    run, _, _ = prepared(tmp_path, [step("long", long, ["a"])])
    lines = run.output.read_text().splitlines()
    assert [len(one) for one in lines] == [LONGEST_LINE_BYTES + len("[long] ")] * 3


# Once.


def count(folder):
    return len((folder / "count").read_text().split())


def test_a_step_that_was_done_is_not_done_again(tmp_path):
    (tmp_path / "raw").write_text("data")
    _, _, said = prepared(tmp_path, [TOKENS])
    assert "tokens done in " in said
    _, state, said = prepared(tmp_path, [TOKENS])
    assert said == "tokens was done before"
    assert (state.phase, state.steps, count(tmp_path)) == (
        "succeeded",
        {"tokens": "done before"},
        1,
    )


CHANGES = {
    "an input": (lambda folder: (folder / "raw").write_text("date"), {}, "raw has changed"),
    "its output": (lambda folder: (folder / "tokens").write_text("x"), {}, "tokens has changed"),
    "no output": (lambda folder: (folder / "tokens").unlink(), {}, "tokens is not there"),
    "the command": (None, {"command": ["sh", "-c", "echo run >> count; cat raw raw > tokens"]},
                    "its command is another one"),
    "another input": (None, {"inputs": ["raw", "more"]}, "more has changed"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_is_done_again_when_something_has_changed(tmp_path, change):
    (tmp_path / "raw").write_text("data")
    (tmp_path / "more").write_text("more")
    prepared(tmp_path, [TOKENS])
    act, other, said = CHANGES[change]
    if act is not None:
        act(tmp_path)
    assert said in prepared(tmp_path, [{**TOKENS, **other}])[2]
    assert count(tmp_path) == 2


def test_a_step_is_done_again_in_another_environment(tmp_path):
    (tmp_path / "raw").write_text("data")
    prepared(tmp_path, [TOKENS])
    said = prepared(tmp_path, [TOKENS], environment={"SEED": "2"})[2]
    assert "its environment is another one" in said


def test_a_folder_counts_with_all_that_is_in_it(tmp_path):
    (tmp_path / "raw/deep").mkdir(parents=True)
    (tmp_path / "raw/deep/one").write_text("1")
    own = step("join", "echo run >> count; mkdir -p out; cat raw/deep/* > out/all", ["out"],
               inputs=["raw"])  # fmt: skip
    prepared(tmp_path, [own])
    assert prepared(tmp_path, [own])[2] == "join was done before"
    (tmp_path / "raw/deep/two").write_text("2")
    assert "raw/deep/two has changed" in prepared(tmp_path, [own])[2]
    (tmp_path / "out/more").touch()
    assert "out/more has changed since" in prepared(tmp_path, [own])[2]


def test_files_that_nobody_changed_are_not_read_again(tmp_path, monkeypatch):
    (tmp_path / "raw").write_text("data")
    monkeypatch.setattr(module, "_SETTLED_NS", 0)
    prepared(tmp_path, [TOKENS])

    def fail(path):
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(module, "_sha256", fail)
    assert prepared(tmp_path, [TOKENS])[2] == "tokens was done before"


def test_a_file_that_was_only_touched_is_the_same(tmp_path):
    (tmp_path / "raw").write_text("data")
    prepared(tmp_path, [TOKENS])
    os.utime(tmp_path / "raw", (1, 1))
    assert prepared(tmp_path, [TOKENS])[2] == "tokens was done before"


def test_two_runs_that_prepare_the_same_do_it_once(tmp_path):
    slow = step("slow", "echo run >> count; sleep 1; touch out", ["out"])
    with beside(job(tmp_path, [slow])) as (_, _, one), beside(job(tmp_path, [slow])) as (_, _, two):
        wait_for(lambda: one and two)
    assert {one[0].phase, two[0].phase} == {"succeeded"}
    assert sorted([one[0].steps["slow"], two[0].steps["slow"]]) == ["done", "done before"]
    assert count(tmp_path) == 1


# Failures.


def test_a_step_that_fails_ends_the_run_and_the_other_steps(tmp_path):
    steps = [
        step("bad", "sleep 0.3; exit 7", ["a"]),
        step("long", "sleep 60", ["b"]),
        step("never", "touch c", ["c"], after=["bad"]),
    ]
    run, state, said = prepared(tmp_path, steps, parallel=2)
    assert said == state.reason == "step bad: it ended with exit code 7"
    assert (state.phase, state.code) == ("failed", 7)
    assert state.steps == {"bad": "failed", "long": "failed", "never": "waiting"}
    assert names_of(run) == ["prepare-failed", "failed"]


BAD = {
    "no output": (step("s", "true", ["out"]), 1, "it ended well, but {}/out is not there"),
    "no input": (step("s", "touch out", ["out"], inputs=["raw"]), 126, "its input {}/raw is not"),
    "no command": ({"name": "s", "command": ["./nothing"], "outputs": ["out"]}, 127,
                   "./nothing cannot be started: No such file"),
    "a pipe": (step("s", "mkfifo out", ["out"]), 126, "{}/out cannot be used: it is neither a"),
    "a signal": (step("s", "kill -9 $$", ["out"]), -9, "it was ended by signal SIGKILL"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_what_is_wrong_with_a_step_is_said(tmp_path, bad):
    own, code, text = BAD[bad]
    _, state, said = prepared(tmp_path, [own])
    assert text.format(tmp_path) in said
    assert (state.phase, state.code) == ("failed", code)


def test_a_preparation_that_failed_is_tried_again_as_the_program_is(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    steps = [TOKENS, step("s", "echo . >> tries; test $(wc -l < tries) = 3 && touch a", ["a"])]
    (tmp_path / "raw").touch()
    run, state, said = prepared(tmp_path, steps, restarts=2)
    assert (state.phase, state.attempt) == ("succeeded", 3)
    assert names_of(run) == ["prepare-failed", "restarting"] * 2 + [
        "prepared", "started", "succeeded",
    ]  # fmt: skip
    assert count(tmp_path) == 1, "the step that was done is not done again"
    assert said.startswith("tokens was done before; s done in")


def test_a_run_that_is_stopped_ends_its_steps(tmp_path):
    made = job(tmp_path, [step("long", "echo $$; touch out; sleep 60", ["out"])], restarts=3)
    with beside(made) as (run, own, states):
        wait_for(lambda: run.output.exists() and run.output.read_text())
        assert run.state().phase == "preparing"
        assert run.state().reason == "long; 0 of 1 steps done"
        pid = int(run.output.read_text().split()[-1])
        own.stop()
        wait_for(lambda: len(states) == 1)
    assert states[0].phase == "stopped"
    assert not Path(f"/proc/{pid}").exists()
    assert prepared(tmp_path, [step("long", "touch out", ["out"])])[2].startswith("long done in")


def submitted(folder, steps):
    text = "\n".join(f"    - {one}".replace("'", '"') for one in steps)
    written(folder, GOOD.replace("[python, train.py]", '["true"]')
            + f"  data:\n    prepare:\n{text}\n")  # fmt: skip
    return penstock("train", "submit", folder / "job.yaml").stdout.strip()


def test_a_step_that_goes_on_without_its_run_is_waited_for_and_done_again(tmp_path):
    text = "echo run >> count; touch out; until [ -e go ]; do sleep 0.1; done; echo late >> end"
    slow = step("slow", text, ["out"])
    run = find(submitted(tmp_path, [slow]))
    wait_for((tmp_path / "out").exists)
    assert "preparing (slow; 0 of 1 steps done)" in penstock("train", "status", run).stdout
    os.kill(run.supervisor(), signal.SIGKILL)
    wait_for(lambda: run.state().phase == "lost")
    again = find(submitted(tmp_path, [slow]))
    wait_for(lambda: again.state().phase == "preparing")
    time.sleep(0.5)
    assert (again.state().steps, count(tmp_path)) == ({"slow": "waiting"}, 1)
    (tmp_path / "go").touch()
    wait_for(lambda: again.state().phase == "succeeded")
    assert (count(tmp_path), (tmp_path / "end").read_text()) == (2, "late\nlate\n")


def test_a_child_that_a_step_leaves_behind_holds_nobody_up(tmp_path):
    own = step("s", "setsid sleep 60 & echo $!; touch out", ["out"])
    began_s = time.monotonic()
    run, _, _ = prepared(tmp_path, [own])
    (tmp_path / "out").unlink()
    prepared(tmp_path, [own])
    assert time.monotonic() - began_s < 20
    subprocess.run(["kill", run.output.read_text().split()[1]], check=False)


def test_a_record_that_was_cut_off_says_nothing(tmp_path, projects):
    (tmp_path / "raw").touch()
    for text in ("", "[]", '{"inputs": 3}', '{"inputs": {"a": [1, 2, 3, 4]}, "outputs": {}}'):
        prepared(tmp_path, [TOKENS])
        (record,) = (projects / "p/.prepared").glob("*.json")
        record.write_text(text)
        assert "it was not done before" in prepared(tmp_path, [TOKENS])[2]


# Documents.


DATA = (
    GOOD
    + """\
  data:
    prepare:
    - {name: one, command: [a], outputs: [x]}
    - {name: two, command: [b], outputs: [y], inputs: [raw], after: [one]}
"""
)
WRONG = {
    "after: [one]|after: [ones]": "11:70: spec.data.prepare[1].after[0]: there is no step 'ones'; "
                                 "did you mean one?",
    "outputs: [x]|outputs: [x], after: [two]": "10:54: spec.data.prepare[0].after: "
                                               "one after two after one: none of them",
    "name: two|name: one": "11:14: spec.data.prepare[1].name: another step has the name one",
    "outputs: [y]|outputs: [x/y]": "spec.data.prepare[1].outputs[0]: step one makes x/y, too",
    "inputs: [raw], after: [one]|inputs: [./x]": "step one makes ./x: write after: [one]",
    "inputs: [raw]|inputs: [y]": "it is an output of the same step",
    "inputs|inptus": "11:47: spec.data.prepare[1].inptus: unknown key; did you mean inputs?",
    "outputs: [x]|outputs: []": "spec.data.prepare[0].outputs",
    "name: two|name: Two": "'Two' is not a name",
    "prepare:|prepear:": "spec.data.prepear: unknown key; did you mean prepare?",
    "prepare:|parallel: 0\n    prepare:": "greater than or equal to 1",
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_steps_that_make_no_sense_are_refused_with_their_line(tmp_path, change):
    former, now = change.split("|")
    assert former in DATA
    with pytest.raises(PenstockError) as caught:
        load_job(written(tmp_path, DATA.replace(former, now)))
    assert WRONG[change] in str(caught.value)


def test_steps_that_make_sense_are_taken(tmp_path):
    data = load_job(written(tmp_path, DATA)).spec.data
    assert [one.after for one in data.prepare] == [[], ["one"]]


@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=8))
def test_steps_are_refused_exactly_if_they_have_no_order(waits):
    names = [f"s{i}" for i in range(len(waits))]
    steps = [
        {"name": name, "command": ["a"], "outputs": [name],
         "after": [names[k] for k in sorted(after) if k < len(names)]}
        for name, after in zip(names, waits, strict=True)
    ]  # fmt: skip
    left, done = list(steps), set()
    while ready := [one for one in left if done.issuperset(one["after"])]:
        done |= {one["name"] for one in ready}
        left = [one for one in left if one not in ready]
    assert bool(list(problems_of(Data.model_validate({"prepare": steps})))) == bool(left)


# Contents.


def test_links_are_followed_and_a_loop_of_them_ends(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "elsewhere").write_text("1")
    (tmp_path / "own/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "own/loop").symlink_to(tmp_path / "own")
    before = contents(tmp_path / "own", {})
    (tmp_path / "elsewhere").write_text("2")
    assert module.changed(before, contents(tmp_path / "own", {})) == str(tmp_path / "own/link")


def test_a_change_within_the_same_moment_is_seen(tmp_path):
    file = tmp_path / "file"
    for i in range(100):
        file.write_text(f"{i:03}")
        known = contents(file, {})
        file.write_text(f"{i + 500:03}")
        assert module.changed(known, contents(file, known)) == str(file)
