"""`penstock train show`: a job as a graph, of which nothing is shown that does not exist."""

import json
import re
import socket

import pytest
from tests.training.conftest import penstock
from tests.training.test_documents import GOOD, written
from tests.training.test_preparation import job, prepared, step
from tests.training.test_runs import supervised
from tests.training.test_watching import figures_when, trained

from penstock.training.document import load_job
from penstock.training.graph import graph_of_job

DATA = """\
  data:
    prepare:
    - {name: one, command: [a], outputs: [x]}
    - {name: two, command: [b], inputs: [raw], outputs: [y], after: [one]}
    - {name: other, command: ['say "hi"'], outputs: [z]}
"""


def shown(name, output="table"):
    done = penstock("train", "show", name, "-o", output)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_job_is_shown_before_it_runs(tmp_path):
    cards = "['cpu=1', 'cuda:1=3', 'cpu=4']\n  spares: ['cuda:2=3']"
    text = GOOD.replace("[cpu, cpu]", cards) + DATA
    file = written(tmp_path, text)
    told = json.loads(shown(file, "json"))
    assert (told["run"], told["pool"], told["spares"]) == ("", None, ["cuda:2=3"])
    assert [(one["name"], one["phase"], one["after"]) for one in told["steps"]] == [
        ("one", "planned", []), ("two", "planned", ["one"]), ("other", "planned", []),
    ]  # fmt: skip
    assert told["manager"] == {
        "command": ["python", "train.py"], "after": ["two", "other"], "phase": "planned",
        "attempt": 0, "pid": 0, "copy_bytes": None, "copy_age_s": None,
    }  # fmt: skip
    cards = {one["kind"]: one["cards"] for one in told["groups"]}
    assert [(card["number"], card["share"]) for card in cards["cpu"]] == [(0, 0.125), (2, 0.5)]
    assert [(card["card"], card["share"]) for card in cards["cuda"]] == [("cuda:1", 0.375)]
    assert {one["node"] for one in told["groups"]} == {socket.gethostname()}
    tree = shown(file)
    for words in ("not started", "two (planned, after one): b: raw -> y", "after two, other",
                  f"group of cuda cards of node {socket.gethostname()}",
                  "spare cards: cuda:2=3", "card 1 cuda:1: 38 % of each batch"):  # fmt: skip
        assert words in tree


def test_shares_that_are_measured_later_are_not_made_up(tmp_path):
    file = written(tmp_path, GOOD)
    (group,) = graph_of_job(load_job(file)).groups
    assert [one.share for one in group.cards] == [None, None]
    assert "card 0 cpu: share measured at its start\n" in shown(file)


def test_a_job_of_a_pool_shows_what_it_asks_for_and_no_cards(tmp_path):
    text = GOOD.replace("cards: [cpu, cpu]", "pool: {tflops: 50, kind: H100}")
    file = written(tmp_path, text.replace("digits", "digits\n  name: first"))
    graph = graph_of_job(load_job(file))
    assert (graph.pool.application, graph.pool.tflops, graph.groups) == ("digits.first", "50", [])
    assert "application digits.first of the compute pool: 50 TFLOPS, kind H100" in shown(file)


def edges_of(dot):
    return re.findall(r'^ *"(.*?)" -> "(.*?)"(?: \[label="(.*)"\])?;$', dot, re.MULTILINE)


def test_graphviz_gets_all_that_depends_on_each_other(tmp_path):
    text = GOOD.replace("[cpu, cpu]", "['cpu=1', 'cpu=3']") + DATA
    dot = shown(written(tmp_path, text), "dot")
    assert edges_of(dot) == [
        ("step one", "step two", ""), ("step two", "manager", ""), ("step other", "manager", ""),
        ("manager", "card 0", "25 % of each batch"), ("manager", "card 1", "75 % of each batch"),
    ]  # fmt: skip
    assert dot.startswith("digraph job {\n")
    assert dot.count("{") == dot.count("}")


def test_a_run_shows_what_its_program_and_its_cards_do():
    with trained():
        figures_when(lambda one: one["samples_per_s"])
        told = json.loads(shown("run-1", "json"))
        tree = shown("run-1")
    (group,) = told["groups"]
    assert [(card["share"], card["rows"]) for card in group["cards"]] == [(0.25, 16), (0.75, 48)]
    assert {card["parameters"] for card in group["cards"]} == {"all"}
    manager = told["manager"]
    assert (told["run"], manager["phase"], manager["attempt"]) == ("default/run-1", "running", 1)
    assert manager["pid"] > 0
    assert manager["copy_bytes"] > 0
    assert f"attempt 1, pid {manager['pid']}" in tree
    assert "copy of what is on the cards, to restore lost ones: " in tree
    assert "75 % of each batch, 48 rows of the last; keeps all of the parameters" in tree


def test_a_run_that_is_over_has_no_process_and_no_copy(tmp_path):
    run, _, _ = prepared(tmp_path, [step("s", "touch out", ["out"])])
    told = json.loads(shown(run, "json"))
    assert (told["manager"]["phase"], told["manager"]["pid"]) == ("succeeded", 0)
    assert told["manager"]["copy_bytes"] is None
    assert [one["phase"] for one in told["steps"]] == ["done"]
    assert "pid" not in shown(run)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["p/owm"], "did you mean p/own?"), (["own", "-o", "do"], "did you mean dot?")],
)
def test_what_cannot_be_shown_is_refused(arguments, said):
    supervised(["true"])
    done = penstock("train", "show", *arguments)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_file_that_is_no_job_is_refused_with_its_line(tmp_path):
    done = penstock("train", "show", written(tmp_path, GOOD + "  restats: 3\n"))
    assert done.returncode == 2
    assert "8:3: spec.restats: unknown key; did you mean restarts?" in done.stderr


def test_a_job_without_a_preparation_or_figures_has_a_graph(tmp_path):
    assert graph_of_job(job(tmp_path, [step("s", "true", ["o"])])).manager.after == ["s"]
    run, _ = supervised(["true"])
    told = json.loads(shown(run, "json"))
    assert (told["steps"], told["groups"][0]["cards"][0]["rows"]) == ([], None)
