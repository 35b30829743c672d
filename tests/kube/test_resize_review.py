"""Requests to resize a running Pod: their review, their count in caps, and their display."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kube.support.ledger_objects import NothingAround

from penstock.kube.objects.device_amounts import Amounts, of_pod
from penstock.kube.objects.names import HELD, PLACED, RESIZE
from penstock.kube.objects.placement import read_placement, write_placement
from penstock.kube.objects.resize_annotation import read_resize, resized, told
from penstock.kube.quota.caps import OVER, Counter, _answers, _Asked, read_cap
from penstock.kube.quota.policies import read_policy
from penstock.kube.webhook.admission_review import Reviewer
from penstock.kube.webhook.review_context import PodClaims
from penstock.model import PenstockError
from penstock.model.share import Share
from penstock.scheduling.placement.device_state import Device

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object
    from penstock.kube.quota.policies import Policy
from tests.kube.support.resizing import GIB, UUID, placed, resize

amounts = st.none() | st.integers(-3, 1 << 60) | st.text(max_size=6) | st.sampled_from(["1Gi", "5"])


@given(
    st.text(max_size=30)
    | st.dictionaries(
        st.sampled_from(["main", "side"]),
        st.dictionaries(st.sampled_from(["memory", "cores-permille", "cores"]), amounts),
        max_size=2,
    ).map(json.dumps)
)
def test_any_resize_annotation_is_refused_with_an_error_or_is_a_share(text):
    placement = {"main": {UUID: Share(GIB, 100)}}
    try:
        after = resized(placement, read_resize(text))
    except PenstockError:
        pass
    else:
        assert read_placement(write_placement(after)) == after


class Around(NothingAround):
    """A review context: one node with a device of 80 GiB, and policies."""

    def __init__(self, *policies: Object, by_claim: bool = False) -> None:
        self._policies = list(policies)
        self.by_claim = by_claim

    async def claims_of(self, pod: Object, namespace: str) -> PodClaims:
        return PodClaims(ours={"gpu": {}} if self.by_claim else {})

    def policies(self, namespace: str) -> list[Policy]:
        return [read_policy(one) for one in self._policies]

    def devices_of(self, name: str) -> dict[str, Device]:
        return {UUID: Device(UUID, "H", 80 * GIB, tflops=100.0)}


def review(
    text: str | None, around: Around, *, was: str | None = None, user: str = "me", **more: str
) -> Object:
    """The review of an update of a running Pod that has 20 GiB and 30 % of its device."""
    limits = {"penstock.io/memory": "20Gi", "penstock.io/cores-permille": "300"}
    if around.by_claim:
        limits = {}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}], "nodeName": "n"}
    found = []
    for resize_to, others in ((was, {}), (text, more)):
        annotations = {PLACED: placed(20, 300), **others}
        if resize_to is not None:
            annotations[RESIZE] = resize_to
        annotations = {key: value for key, value in annotations.items() if value}
        metadata = {"name": "p", "annotations": annotations, "labels": {"app": "a"}}
        found.append({"metadata": metadata, "spec": spec})
    request = {
        "uid": "u", "operation": "UPDATE", "namespace": "ns", "oldObject": found[0],
        "object": found[1], "resource": {"resource": "pods"}, "userInfo": {"username": user},
    }  # fmt: skip
    reviewer = Reviewer(around, scheduler_user="scheduler")  # type: ignore[arg-type]
    body = json.dumps({"request": request}).encode()
    return asyncio.run(reviewer.answer(body, may_patch=False))["response"]


POLICY = {
    "metadata": {"name": "small", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
    "spec": {"selector": {"matchLabels": {"app": "a"}}, "limits": {"memory": "40Gi", "cores": 50}},
}


@pytest.mark.parametrize(
    ("text", "policies", "why"),
    [
        (resize(30, 400), (), ""),
        (resize(10, 100), (POLICY,), ""),
        (resize(40, 500), (POLICY,), ""),
        (resize(81), (), "the device has 80Gi"),
        (resize(41), (POLICY,), "QuotaPolicy ns/small allows 40Gi"),
        (resize(None, 501), (POLICY,), "QuotaPolicy ns/small allows 50 %"),
        (resize(None, 1001), (), "the maximum is 1000 permille, a whole device"),
        (resize(30, container="mian"), (), "the Pod has vGPUs in main"),
        ('{"main": {"memmory": "30Gi"}}', (), "did you mean memory?"),
        ('{"main": {"memory": "40"}}', (), "such as 40Gi"),
        ('{"main": {}}', (), "it gives no quantities"),
        ("30Gi", (), "write it like {"),
    ],
)
def test_a_resize_that_cannot_be_granted_is_refused_at_once(text, policies, why):
    answer = review(text, Around(*policies))
    assert answer["allowed"] == (not why)
    assert why in (answer.get("status") or {}).get("message", "")


def test_a_claims_share_is_not_resized_and_only_the_scheduler_changes_placements():
    answer = review(resize(30), Around(by_claim=True))
    assert answer["allowed"]
    assert "an allocated claim cannot change" in answer["warnings"][0]
    assert review(None, Around(), was=resize(30))["allowed"]
    assert review("{", Around(), was="{")["allowed"]  # as it was: not this change's doing
    assert "no device yet" in review(resize(30), Around(), **{PLACED: ""}, user="scheduler")[
        "status"
    ]["message"]  # fmt: skip
    for name in (PLACED, HELD):
        answer = review(None, Around(), **{name: placed(30, 300)})
        assert f"annotation {name} cannot be changed by me" in answer["status"]["message"]
        assert review(None, Around(), user="scheduler", **{name: placed(30, 300)})["allowed"]


def test_a_cap_counts_the_most_of_what_a_pod_requests_has_and_still_holds():
    limits = {"penstock.io/memory": "20Gi", "penstock.io/cores-permille": "300"}
    one: Object = {
        "metadata": {"uid": "a", "annotations": {PLACED: placed(20, 300)}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    annotations = one["metadata"]["annotations"]
    assert of_pod(one) == Amounts(1, 20 * GIB, 300)
    annotations[RESIZE] = resize(30)
    assert of_pod(one) == Amounts(1, 30 * GIB, 300)
    annotations |= {PLACED: placed(10, 100), HELD: placed(40, 300), RESIZE: resize(15, 400)}
    assert of_pod(one) == Amounts(1, 40 * GIB, 400)
    del annotations[HELD], annotations[RESIZE]
    assert of_pod(one) == Amounts(1, 20 * GIB, 300)  # as quotas of Kubernetes' own count it


def test_a_resize_that_is_reviewed_again_for_a_newer_version_counts_once():
    """The API server reviews a request again when the Pod has changed meanwhile."""
    ten = {"vgpus": 0, "memoryBytes": 10 * GIB, "coresPermille": 0}
    cap = read_cap(
        {
            "metadata": {"namespace": "ns", "name": "default", "resourceVersion": "1"},
            "spec": {"hard": {"memory": "30Gi"}},
            "status": {
                "used": {"vgpus": 1, "memoryBytes": 20 * GIB, "coresPermille": 300},
                "pending": {f"a{OVER}7{OVER}w": ten},
            },
        }
    )
    more = Amounts(0, 10 * GIB, 0)

    def asked(key: str) -> tuple[list[str | None], set[str]]:
        answers, pending = _answers(cap, [_Asked(key, more, dry=False, answer=None)])
        return answers, set(pending)

    again = f"a{OVER}8{OVER}w"
    assert asked(again) == ([None], {again})
    for other in (f"a{OVER}8{OVER}x", f"b{OVER}8{OVER}w"):
        answers, pending = asked(other)
        assert "would be exceeded" in (answers[0] or "")
        assert pending == {f"a{OVER}7{OVER}w"}


def test_pending_growth_stays_in_a_cap_until_a_newer_version_of_its_pod_is_seen():
    status = {
        "used": {"vgpus": 1, "memoryBytes": 20 * GIB, "coresPermille": 300},
        "pending": {f"a{OVER}7{OVER}w": {"vgpus": 0, "memoryBytes": 10 * GIB, "coresPermille": 0}},
        "observedGeneration": 0,
    }
    cap = read_cap(
        {
            "metadata": {"namespace": "ns", "name": "default", "resourceVersion": "1"},
            "spec": {"hard": {"memory": "30Gi"}},
            "status": status,
        }
    )
    versions = {"claims": "9", "pods": "9"}
    held = {"a": Amounts(1, 20 * GIB, 300)}
    assert Counter().fold(cap, held, versions, {"a": "7"}) is None
    body = Counter().fold(cap, {"a": Amounts(1, 30 * GIB, 300)}, versions, {"a": "8"})
    assert body
    assert body["status"]["pending"] == {}
    assert body["status"]["used"]["memoryBytes"] == 30 * GIB
    counter = Counter()
    counter.ended("a")
    body = counter.fold(cap, {}, versions, {})
    assert body
    assert body["status"]["pending"] == {}


def test_the_share_a_pod_has_still_holds_and_requests_are_shown_separately():
    annotations = {PLACED: placed(20, 300)}
    before = "before 20Gi and 30 %"
    has = f"main has 20Gi and 30 % of {UUID}"
    assert told({}) == []
    assert told(annotations) == [has]
    annotations |= {HELD: placed(30, 300), RESIZE: resize(60)}
    assert told(annotations) == [
        has,
        f"still held until its node has shrunk it: main: 30Gi and 30 % of {UUID}, {before}",
        f"requested but not reserved: main: 60Gi and 30 % of {UUID}, {before}",
    ]
    assert "cannot be read" in told({**annotations, RESIZE: "{"})[0]
