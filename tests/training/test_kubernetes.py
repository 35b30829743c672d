"""A job on Kubernetes: what its document must have, the objects, and the ends of its cards."""

import base64
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml
from tests.training.conftest import penstock, python
from tests.training.test_documents import written

from penstock.card.credentials import write
from penstock.model import PenstockError
from penstock.training.document import load_job, load_kubernetes_job
from penstock.training.manifests import objects, selector

GOOD = """\
apiVersion: penstock.io/v1alpha1
kind: TrainJob
metadata: {project: digits, name: first}
spec:
  command: [python, train.py, $(HOME)]
  environment: {PRICE: 5$}
  restarts: 3
  grace: 1m
  kubernetes:
    image: registry.example.com/digits:1
    namespace: team-a
    groups:
      - name: a
        cards: 2
        limits: {penstock.io/memory: 20Gi, penstock.io/cores-permille: 300}
        nodeSelector: {gpu: h200}
      - {name: b, cards: 1, card: npu:0, image: other, claimTemplate: share}
    program:
      requests: {cpu: 4}
      volumes:
        - {name: data, mountPath: /data, source: {persistentVolumeClaim: {claimName: digits}}}
"""


@pytest.fixture
def made(tmp_path):
    """The objects of GOOD, by kind and name."""
    write(tmp_path / "credentials", 1)
    job = load_kubernetes_job(written(tmp_path, GOOD))
    return {(one["kind"], one["metadata"]["name"]): one
            for one in objects(job, tmp_path / "credentials")}  # fmt: skip


def pod_of(made, name):
    return made["Job", name]["spec"]["template"]["spec"]


WRONG = {
    "cards: 0": ("14:16", "spec.kubernetes.groups[0].cards", "greater than or equal to 1"),
    "crads: 1": ("14:9", "spec.kubernetes.groups[0].crads", "unknown key; did you mean cards?"),
    "name: B": ("13:15", "spec.kubernetes.groups[0].name", "'B' is not a group's name"),
    "limits: {penstock.io/cores: 3}": (
        "15:17", "spec.kubernetes.groups[0].limits", "did you mean penstock.io/cores-permille?",
    ),
    "limits: {cpu: 20GB}": (
        "15:17", "spec.kubernetes.groups[0].limits", "'20GB' is not a quantity: write it like 20Gi",
    ),
    "card: cuda:0=3": ("", "spec.kubernetes.groups[0].card", "'cuda:0=3' is no card"),
}  # fmt: skip


@pytest.mark.parametrize("line", WRONG)
def test_a_key_of_a_group_that_is_wrong_is_named_with_its_line(tmp_path, line):
    key = {"crads": "cards", "card": "nodeSelector"}.get(line.split(":")[0], line.split(":")[0])
    text = re.sub(rf"(?m)^(      - |        ){key}: .*$", rf"\g<1>{line}", GOOD, count=1)
    assert text != GOOD
    file = written(tmp_path, text)
    with pytest.raises(PenstockError) as caught:
        load_kubernetes_job(file)
    place, path, what = WRONG[line]
    assert f"{file}:{place}" in str(caught.value)
    assert f" {path}: " in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: b,", "name: a,", "two groups have the name a"),
        ("name: b,", "name: b, speed: 2,", "some groups have a speed and others have none"),
        (", name: first", "", "metadata.name: is missing"),
        ("name: first", "name: v1.2", "use no '.'"),
        ("name: first", f"name: {'x' * 52}", "at most 56 letters"),
        ("  restarts: 3", "  folder: here", "'here' does not begin with /"),
        ("mountPath: /data", "mountPath: data", "'data' does not begin with /"),
        ("  kubernetes:", "  cards: [cpu]\n  pool: {tflops: 1}\n  kubernetes:", "write either"),
    ],
)
def test_a_job_that_has_no_objects_is_refused(tmp_path, old, new, said):
    with pytest.raises(PenstockError) as caught:
        load_kubernetes_job(written(tmp_path, GOOD.replace(old, new)))
    assert said in str(caught.value)


def test_a_job_for_kubernetes_alone_does_not_run_here_and_the_error_says_where(tmp_path):
    file = written(tmp_path, GOOD)
    done = penstock("train", "submit", file)
    assert done.returncode == 2
    assert f"{file}:10:5: spec.kubernetes: the job has cards on Kubernetes alone" in done.stderr
    assert f"penstock train render {file} | kubectl apply -f -" in done.stderr
    both = written(tmp_path, GOOD.replace("  kubernetes:", "  cards: [cpu]\n  kubernetes:"))
    assert load_job(both).spec.cards == ["cpu"]
    assert load_kubernetes_job(both).spec.kubernetes.namespace == "team-a"


def test_a_job_without_kubernetes_has_no_objects(tmp_path):
    text = GOOD.partition("  kubernetes:")[0] + "  cards: [cpu]\n"
    with pytest.raises(PenstockError, match=r"5:3: spec\.kubernetes: is missing"):
        load_kubernetes_job(written(tmp_path, text))


def test_each_side_gets_its_own_half_of_new_credentials(made, tmp_path):
    for part, half in (("program", "program"), ("cards", "worker")):
        secret = made["Secret", f"digits-first-{part}"]
        kept = {one: base64.b64decode(text) for one, text in secret["data"].items()}
        files = {one.name: one.read_bytes() for one in (tmp_path / "credentials" / half).iterdir()}
        assert kept == files
        assert secret["immutable"], "who renders again does not replace them below a running job"
    mounted = {name: pod_of(made, name)["volumes"][0]["secret"]["secretName"]
               for name in ("digits-first", "digits-first-a", "digits-first-b")}  # fmt: skip
    assert mounted == {
        "digits-first": "digits-first-program", "digits-first-a": "digits-first-cards",
        "digits-first-b": "digits-first-cards",
    }  # fmt: skip


def test_the_program_lists_the_cards_by_the_names_of_their_pods(made):
    (container,) = pod_of(made, "digits-first")["containers"]
    assert container["command"][:4] == ["penstock", "train", "run", "--cards=" + ",".join(
        f"tcp:digits-first-{one}.digits-first:7700" for one in ("a-0", "a-1", "b-0")
    )]  # fmt: skip
    assert ("Service", "digits-first") in made
    for name, cards in (("digits-first-a", 2), ("digits-first-b", 1)):
        spec = made["Job", name]["spec"]
        assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == (
            "Indexed", cards, cards,
        )  # fmt: skip
        assert pod_of(made, name)["subdomain"] == "digits-first"


def test_a_group_has_what_its_section_says(made):
    (of_a,), (of_b,) = (pod_of(made, f"digits-first-{one}")["containers"] for one in "ab")
    assert of_a["resources"] == {
        "limits": {"penstock.io/memory": "20Gi", "penstock.io/cores-permille": "300"}
    }
    assert "--card=cuda:0" in of_a["command"]
    assert "--card=npu:0" in of_b["command"]
    assert (of_a["image"], of_b["image"]) == ("registry.example.com/digits:1", "other")
    assert pod_of(made, "digits-first-a")["nodeSelector"] == {"gpu": "h200"}
    (claim,) = pod_of(made, "digits-first-b")["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == "share"
    assert of_b["resources"]["claims"] == [{"name": claim["name"]}]


def test_kubernetes_replaces_nothing_in_what_the_program_gets(made):
    (container,) = pod_of(made, "digits-first")["containers"]
    assert container["command"][-3:] == ["python", "train.py", "$$(HOME)"]
    assert {"name": "PRICE", "value": "5$$"} in container["env"]
    assert "--failures=$(PENSTOCK_FAILURES)" in container["command"]


def test_every_object_and_pod_has_the_labels_of_its_run(made, tmp_path):
    own = {"penstock.io/train-project": "digits", "penstock.io/train-run": "first"}
    assert selector(load_kubernetes_job(written(tmp_path, GOOD))) == ",".join(
        f"{name}={value}" for name, value in own.items()
    )
    for one in made.values():
        assert one["metadata"]["labels"] == own
        assert one["metadata"]["namespace"] == "team-a"
        if one["kind"] == "Job":
            assert own.items() <= one["spec"]["template"]["metadata"]["labels"].items()


def test_pods_have_no_token_and_no_rights(made):
    for name in ("digits-first", "digits-first-a", "digits-first-b"):
        pod = pod_of(made, name)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


def test_what_is_printed_are_the_objects_alone_and_beside_it_is_said_how_to_remove_them(tmp_path):
    done = penstock("train", "render", written(tmp_path, GOOD))
    assert done.returncode == 0, done.stderr
    kinds = [one["kind"] for one in yaml.safe_load_all(done.stdout)]
    assert kinds == ["Secret", "Secret", "Service", "Job", "Job", "Job"]
    assert "kubectl -n team-a delete jobs,services,secrets -l penstock.io/train-" in done.stderr


class Card:
    """A card for one run, as in a Pod."""

    def __init__(self, credentials):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "card", "serve", "--listen=127.0.0.1:0",
             f"--credentials={credentials}", "--card=cpu", "--once", "--wait=60s"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        port = re.search(r"at 127\.0\.0\.1:(\d+)", self.process.stderr.readline())[1]
        self.name = f"tcp:127.0.0.1:{port}"

    def has_ended(self):
        """Whether it ends by itself, in order."""
        try:
            return self.process.wait(2) == 0
        except subprocess.TimeoutExpired:
            return False


@pytest.fixture
def card(tmp_path, monkeypatch):
    write(tmp_path / "credentials", 1)
    monkeypatch.setenv("PENSTOCK_CARD_CREDENTIALS", str(tmp_path / "credentials" / "program"))
    made = Card(tmp_path / "credentials" / "worker")
    yield made
    made.process.kill()
    made.process.communicate()


USES = "import torch; print(torch.ones(3, device='cuda').sum().item(), flush=True); "
FAILS = USES + "raise SystemExit(5)"


def train(card, text, *options):
    return penstock("train", "run", "--cards", card.name, *options, "--", *python(text))


def test_the_cards_of_a_run_end_when_it_has_succeeded(card):
    done = train(card, USES)
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr
    assert card.has_ended()


def test_the_cards_of_a_program_that_fails_stay_until_it_fails_for_good(card):
    second = "import os; " + USES + "raise SystemExit(os.environ['PENSTOCK_TRAIN_ATTEMPT'] != '2')"
    assert train(card, FAILS, "--restarts=1", "--failures=0").returncode == 5
    assert not card.has_ended(), "a Pod that starts the program again needs them"
    done = train(card, second, "--restarts=2", "--failures=1")
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr
    assert card.has_ended()


def test_the_cards_of_a_program_that_failed_for_good_end(card):
    assert train(card, FAILS, "--restarts=1", "--failures=1").returncode == 5
    assert card.has_ended()


def test_a_program_that_is_told_to_stop_has_not_succeeded_and_keeps_its_cards(card):
    waits = ("import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); " + USES
             + "time.sleep(60)")  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "train", "run", "--cards", card.name, "--",
         *python(waits)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "3.0\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143, "a Pod that ends with 0 is not started again"
    assert not card.has_ended()
