"""The extender's ledger of allocated shares, for any order of events of Nodes and Pods."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kube.extender.filter_answers import Answers
from penstock.kube.extender.ledger import Kept, Ledger, read_node, read_pod
from penstock.kube.extender.preemption_forecast import Asker
from penstock.kube.objects.names import BY_CLAIMS, PLACED, WAY
from penstock.kube.objects.resource_request import read_request
from penstock.kube.webhook.admission_review import Reviewer
from penstock.model import PenstockError
from penstock.model.share import Share
from penstock.scheduling.placement.pod_request import Ask, Request

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object
from tests.kube.support.ledger_objects import NothingAround, node, pod

ASK = Request((Ask("main", memory_bytes=1 << 30, cores_permille=100),))


events = st.lists(
    st.tuples(
        st.sampled_from(["node", "no-node", "bind", "refused", "seen", "gone"]),
        st.integers(0, 1),
        st.integers(0, 3),
    ),
    max_size=40,
)


class Told:
    """A ledger, and a record of the events that it received."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.nodes: dict[str, Any] = {}
        self.pods: dict[str, Any] = {}
        self.posted: dict[str, tuple[str, int]] = {}  # Bindings that were not seen

    def node(self, what: str, name: str) -> None:
        new = read_node(node(name)) if what == "node" else None
        self.ledger.node_changed(("", name), self.nodes.get(name), new)
        self.nodes[name] = new

    def pod(self, what: str, uid: str, where: str, cores: int) -> None:
        if what == "bind" and uid not in self.pods:
            shares = {f"{where}-0": Share(1 << 30, cores)}
            self.ledger.assume(uid, ("", uid), where, shares)
            self.posted[uid] = where, cores
        elif what == "refused":
            self.ledger.release(uid)
            self.posted.pop(uid, None)
        elif what == "seen":
            seen = read_pod(pod(uid, where, cores))
            self.ledger.pod_changed(("", uid), self.pods.get(uid), seen)
            self.pods[uid] = seen
            self.posted.pop(uid, None)
        elif what == "gone" and uid in self.pods:
            self.ledger.pod_changed(("", uid), self.pods.pop(uid), None)

    def cores(self, name: str) -> int:
        uuid = f"{name}-0"
        seen = [one.shares.get(uuid) for one in self.pods.values()]
        held = sum(share.cores_permille for share in seen if share)
        return held + sum(cores for where, cores in self.posted.values() if where == name)


@given(events)
def test_the_ledger_counts_what_pods_hold_and_what_pending_bindings_may_give_them(steps):
    told = Told()
    for what, at, number in steps:
        if what in {"node", "no-node"}:
            told.node(what, f"n{at}")
        else:
            told.pod(what, f"p{number}", f"n{at}", 100 + number)
    for name in ("n0", "n1"):
        known = told.ledger.nodes.get(name)
        assert (known.taken(f"{name}-0").cores_permille if known else 0) == told.cores(name)
        fits, lacking = told.ledger.survey([name], ASK)
        assert bool(fits) == (told.nodes.get(name) is not None)  # four Pods fit in any case
        assert bool(lacking) != bool(fits)


REQUESTS = (  # one share and several, of any model and of one: each is surveyed in another way
    ASK,
    Request((Ask("main", memory_bytes=1 << 30, cores_permille=900),)),
    Request((Ask("main", count=2, memory_bytes=1 << 30, cores_permille=700),)),
    Request((Ask("main"),)),
    Request((Ask("main", memory_bytes=1 << 30, cores_permille=100),), "another"),
)


@given(events)
@settings(max_examples=25)
def test_a_remembered_answer_equals_a_newly_computed_one(steps):
    """After any changes, and with room reserved for any Pod."""
    told = Told()
    answers = Answers(told.ledger)
    names = answers.names(["n0", "n1", "n2"])
    for what, at, number in steps:
        if what in {"node", "no-node"}:
            told.node(what, f"n{at}")
        else:
            told.pod(what, f"p{number}", f"n{at}", 100 + 200 * number)
        if what == "refused":
            shares = {f"n{at}-0": Share(1 << 30, 500)}
            told.ledger.keep(f"w{number}", Kept(("", ""), f"n{at}", number, shares))
        elif what == "gone":
            told.ledger.keep_no_longer(f"w{number}")
        for request in REQUESTS:
            for uid, priority in (("other", 0), ("w1", 0), ("other", 2)):
                asker = Asker(uid, priority, request)
                got = answers.of(answers.names(["n0", "n1", "n2"]), asker)
                assert got == Answers(told.ledger).of(names, asker)


def test_a_request_that_fits_nowhere_is_answered_from_memory_until_a_node_changes():
    ledger, looked = Ledger(), []
    for at in range(200):
        ledger.node_changed(("", f"n{at}"), None, read_node(node(f"n{at}")))
    answers = Answers(ledger)
    request = Request((Ask("main", count=3, memory_bytes=1 << 30, cores_permille=100),))
    survey = ledger.survey

    def counting(names, request, known):
        before = len(known)
        found = survey(names, request, known)
        looked.append(len(known) - before)
        return found

    ledger.survey = counting
    for uid in range(20):
        asker = Asker(str(uid), 0, request)
        assert not answers.of(answers.names([f"n{at}" for at in range(200)]), asker).fits
    assert looked == [200], "twenty Pods that ask for the same"
    ledger.pod_changed(("", "p"), None, read_pod(pod("p", "n7", 100)))
    answers.of(answers.names([f"n{at}" for at in range(200)]), asker)
    assert looked == [200, 1], "one node changed"


def test_a_node_is_served_in_one_way_or_not_at_all():
    ledger = Ledger()
    for name, one in {
        "ours": node("ours"),
        "claims": node("claims", BY_CLAIMS),
        "nobody": node("nobody", None),
        "torn": node("torn", text="{"),
    }.items():
        ledger.node_changed(("", name), None, read_node(one))
    bare = read_node({"metadata": {"name": "bare"}})
    ledger.node_changed(("", "bare"), None, bare)
    fits, lacking = ledger.survey(["ours", "claims", "nobody", "torn", "bare", "new"], ASK)
    assert fits == ["ours"]
    assert lacking == {
        f"devices are allocated by claims: see label {WAY}": ["claims"],
        f"devices are allocated by nobody: see label {WAY}": ["nobody"],
        "the node's devices cannot be read": ["torn"],
        "no devices are registered": ["bare"],
        "the node is not known yet": ["new"],
    }


def test_a_pod_holds_its_shares_until_its_containers_are_gone():
    going = pod("u", "n", 100, deletionTimestamp="2026-01-01T00:00:00Z")
    assert read_pod(going)
    for phase in ("Succeeded", "Failed"):
        assert read_pod({**pod("u", "n", 100), "status": {"phase": phase}}) is None
    assert read_pod({**pod("u", "n", 100), "spec": {"containers": []}}) is None
    waiting = pod("u", "n", 100)
    waiting["metadata"]["annotations"][PLACED] = "[]]"
    assert read_pod(waiting) is None


def test_a_device_that_is_overcommitted_is_reported_once():
    told = []
    ledger = Ledger(lambda event, **fields: told.append((event, fields)))
    ledger.node_changed(("", "n"), None, read_node(node("n")))
    for number in range(3):
        ledger.pod_changed(("", str(number)), None, read_pod(pod(str(number), "n", 600)))
    assert told == [("overcommitted", {"node": "n"})]
    fits, lacking = ledger.survey(["n"], Request((Ask("m", memory_bytes=1, cores_permille=1),)))
    assert fits == ["n"]  # its other device is free
    assert not lacking


WORDS = st.sampled_from([
    "request", "uid", "object", "oldObject", "resource", "operation", "CREATE", "UPDATE", "pods",
    "userInfo", "username", "spec", "containers", "initContainers", "resources", "limits",
    "penstock.io/memory", "1Gi", "template", "jobTemplate", "metadata", "annotations", "name",
    "nodeName", "", "0",
])  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
)


def ask(request: object) -> Object:
    reviewer = Reviewer(NothingAround())  # type: ignore[arg-type]
    body = json.dumps({"request": request}).encode()
    answer = asyncio.run(reviewer.answer(body, may_patch=True))
    assert answer["kind"] == "AdmissionReview"
    return answer["response"]


@given(
    JSON,
    st.sampled_from([
        "pods", "resourceclaims", "resourceclaimtemplates", "bindings", "deployments", "cronjobs",
    ]),
)  # fmt: skip
def test_the_webhook_answers_a_review_of_any_object(one, plural):
    request = {
        "uid": "u", "operation": "CREATE", "namespace": "n", "object": one,
        "resource": {"resource": plural}, "userInfo": {"username": "me"},
    }  # fmt: skip
    response = ask(request)
    assert response["uid"] == "u"
    assert response["allowed"] or response["status"]["message"]
    ask(one)


@given(
    st.dictionaries(
        st.sampled_from(["vgpu", "memory", "cores-permille", "tflops", "cores"]),
        st.integers(-10, 2000).map(str) | st.sampled_from(["1Gi", "500m", "1e3", "x", "", "9Ei"]),
        max_size=3,
    )
)
def test_the_extender_can_read_every_pod_that_admission_lets_through(limits):
    limits = {f"penstock.io/{key}": value for key, value in limits.items()}
    one = {"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
    response = ask({
        "uid": "u", "operation": "CREATE", "namespace": "n", "object": one,
        "resource": {"resource": "pods"}, "userInfo": {"username": "me"},
    })  # fmt: skip
    if response["allowed"]:
        request = read_request(one)
        assert (request is None) == (not limits)
    else:
        assert "penstock.io/" in response["status"]["message"]
        if "penstock.io/cores" not in limits:
            with pytest.raises(PenstockError):
                read_request(one)
