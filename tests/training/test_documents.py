"""A job's document: what is wrong in it is said with its line, and what would be right."""

import pytest

from penstock.model import PenstockError
from penstock.training.document import load_job

GOOD = """\
apiVersion: penstock.io/v1alpha1
kind: TrainJob
metadata:
  project: digits
spec:
  command: [python, train.py]
  cards: [cpu, cpu]
"""


def written(folder, text):
    file = folder / "job.yaml"
    file.write_text(text)
    return file


def test_a_job_runs_in_the_folder_of_its_document(tmp_path):
    job = load_job(written(tmp_path, GOOD))
    assert job.metadata.project == "digits"
    assert job.spec.folder == str(tmp_path)
    assert job.spec.card_variable() == "cpu,cpu"
    assert job.spec.restarts == 0
    below = load_job(written(tmp_path, GOOD + "  folder: below\n"))
    assert below.spec.folder == str(tmp_path / "below")


def test_credentials_lie_beside_the_document(tmp_path):
    text = GOOD.replace("[cpu, cpu]", "[cpu, tcp:gpu1:7700]") + "  credentials: keys/program\n"
    spec = load_job(written(tmp_path, text)).spec
    assert spec.credentials == str(tmp_path / "keys" / "program")
    assert spec.card_variable() == "cpu,tcp:gpu1:7700"


@pytest.mark.parametrize(
    ("cards", "variable"),
    [("[cpu, cpu]", "cpu=1,cpu=1"), ("[cpu@9000000, cuda:1]", "cpu=1@9000000,cuda:1=1")],
)
def test_an_even_split_gives_all_cards_the_same_speed(tmp_path, cards, variable):
    text = GOOD.replace("[cpu, cpu]", cards) + "  split: even\n"
    assert load_job(written(tmp_path, text)).spec.card_variable() == variable
    text = GOOD + f"  split: even\n  spares: {cards}\n"
    assert load_job(written(tmp_path, text)).spec.spares_variable() == variable


WRONG = {
    "restats: 3": ("8:3: spec.restats: unknown key; did you mean restarts?", ""),
    "restarts: -1": ("8:13: spec.restarts:", "greater than or equal to 0"),
    "split: wieghted": ("8:10: spec.split: 'wieghted' is not valid", "did you mean weighted?"),
    "grace: 5x": ("8:10: spec.grace:", "5x"),
    "pool: {tflops: 3}": ("6:3: spec:", "write either cards or pool"),
    "pool: {tfops: 3}": ("8:10: spec.pool.tfops: unknown key; did you mean tflops?", ""),
    "webhook: ftp://x/y": ("8:12: spec.webhook: 'ftp://x/y' is no address", "write https://"),
    "credentials: keys": ("6:3: spec:", "cards at tcp:HOST:PORT and credentials"),
    "spares: [cpu=1]": ("6:3: spec:", "some cards have a speed and others have none"),
    "spares: ['tcp:gpu1:7700']": ("6:3: spec:", "cards at tcp:HOST:PORT and credentials"),
    "outputs: [a, ../b]": ("8:16: spec.outputs[1]: '../b' is not below the folder", ""),
    "environment: [a]": ("8:16: spec.environment:", "mapping"),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_key_or_value_that_is_wrong_is_named_with_its_line(tmp_path, line):
    file = written(tmp_path, f"{GOOD}  {line}\n")
    with pytest.raises(PenstockError) as caught:
        load_job(file)
    where, what = WRONG[line]
    assert f"{file}:{where}" in str(caught.value) or "spec:" in where
    assert where.partition(": ")[2] in str(caught.value)
    assert what in str(caught.value)


CARDS = {
    "[gpu=x]": "invalid card 'gpu=x'",
    "[cpu=1, cpu]": "some cards have a speed and others have none",
    "['cpu,cpu']": "is several cards: write each as an item",
    "[]": "at least 1 item",
    "[tpu]": "tpu",
}


@pytest.mark.parametrize("cards", CARDS)
def test_cards_that_there_cannot_be_are_refused(tmp_path, cards):
    with pytest.raises(PenstockError) as caught:
        load_job(written(tmp_path, GOOD.replace("[cpu, cpu]", cards)))
    assert CARDS[cards] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 documents"),
        (GOOD + "---\n" + GOOD, "has 2 documents"),
        ("- a\n", "a job is a mapping"),
        (GOOD.replace("kind: TrainJob\n", ""), "kind: is missing: write TrainJob"),
        (GOOD.replace("TrainJob", "QuotaPolicy"), "use 'TrainJob'"),
        (GOOD.replace("digits", "../x"), "metadata.project: '../x' is not a name"),
        (GOOD.replace("[python, train.py]", "[]"), "spec.command"),
        (GOOD + "  cards: [cpu]\n", "cards"),
        (GOOD.replace("cards: [cpu, cpu]", "pool: {tflops: 3}\n  spares: [cpu]"), "spares are for"),
    ],
)
def test_a_document_that_is_no_job_is_refused(tmp_path, text, said):
    with pytest.raises(PenstockError) as caught:
        load_job(written(tmp_path, text))
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PenstockError, match=r"nothing\.yaml.*No such file"):
        load_job(tmp_path / "nothing.yaml")
