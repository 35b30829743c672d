"""The CRDs follow from the models; caps and the matching of policies are exact."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kube.support.controlling import CRDS

from penstock.kube.controller import crd
from penstock.kube.objects.device_amounts import Amounts, of_claim_spec, of_pod, total
from penstock.kube.objects.device_class import whose
from penstock.kube.quota.caps import Counter, _answers, _Asked, _replaced, read_cap
from penstock.kube.quota.policies import holding, matching, reach, read_policy, status_of
from penstock.kube.quota.policy_bounds import bound_of
from penstock.model import PenstockError
from penstock.model.metric import METRICS
from penstock.policy.schema import QuotaPolicy


@pytest.mark.parametrize("made", [crd.policy_crd(), crd.cap_crd()], ids=["policy", "cap"])
def test_the_committed_definitions_are_what_make_gen_writes(made):
    file = CRDS / f"{made['spec']['names']['plural']}.yaml"
    assert file.read_text() == crd.text_of(made), "run make gen"


def test_every_key_of_a_policy_is_in_its_definition():
    whole = QuotaPolicy.model_json_schema(by_alias=True)["$defs"]
    version = crd.policy_crd()["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert spec.keys() == whole["Spec"]["properties"].keys()
    assert spec["limits"]["properties"].keys() == whole["Limits"]["properties"].keys()
    metrics = spec["scale"]["properties"]["metrics"]
    assert {one.key for one in METRICS.values()} == metrics["properties"].keys()
    text = crd.text_of(crd.policy_crd())
    assert "$ref" not in text
    assert "&id" not in text
    for name in crd.RULES:
        assert name in whole, "a rule for a model that is not there"


def policy(name: str, labels: dict[str, str] | None = None, **spec):
    selector = {"selector": {"matchLabels": labels}} if labels is not None else {}
    return read_policy(
        {
            "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"},
            "spec": {"limits": {"memory": "1Gi", "cores": 10}, **selector, **spec},
        }
    )


def test_a_policy_is_matched_by_labels_by_name_and_as_default():
    every = [policy("a", {"app": "a"}), policy("ab", {"app": "a", "tier": "b"}), policy("rest")]
    names = [one.name for one in matching(every, {"app": "a"}, "", asks=True)]
    assert names == ["a"]
    assert [one.name for one in holding(every, {"app": "x"})] == ["rest"]
    assert matching(every, {"app": "x"}, "", asks=False) == []
    named = holding(every, {"app": "a"}, "ab")
    assert [one.name for one in named] == ["a", "ab"], "its own word adds one"
    both = holding(every, {"app": "a", "tier": "b"})
    assert [one.name for one in both] == ["a", "ab"]
    with pytest.raises(PenstockError, match="did you mean rest"):
        holding(every, {}, "rset")
    with pytest.raises(PenstockError, match="more than a whole device"):
        bound_of([policy("bad", {"a": "b"}, limits={"cores": 150})])


def test_a_status_keeps_the_time_of_a_condition_that_stays():
    one = policy("a", {"app": "a"})
    first = status_of(one, reach([one], [], []), [])
    first["conditions"][0]["lastTransitionTime"] = "2001-01-01T00:00:00Z"
    again = read_policy(
        {
            "metadata": {
                "name": "a", "namespace": "n", "uid": "a", "resourceVersion": "2", "generation": 2,
            },
            "spec": {"limits": {"memory": "1Gi", "cores": 10}},
            "status": first,
        }
    )  # fmt: skip
    second = status_of(again, reach([again], [], []), [])
    assert second["conditions"][0]["lastTransitionTime"] == "2001-01-01T00:00:00Z"
    rival = policy("b")
    conflict = status_of(again, reach([again, rival], [], []), [])["conditions"][0]
    assert conflict["reason"] == "Conflict"
    assert conflict["lastTransitionTime"] != "2001-01-01T00:00:00Z"


def container(**asked: str):
    return {
        "name": "-".join(asked),
        "resources": {
            "limits": {f"penstock.io/{k.replace('_', '-')}": v for k, v in asked.items()}
        },
    }


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        (['device.driver == "penstock.io"'], "ours"),
        (["device.attributes['penstock.io'].productName == 'NVIDIA H200'"], "ours"),
        (['device.driver == "gpu.example.com" || device.driver == "penstock.io"'], "ours"),
        (["device.driver=='gpu.example.com'", "true"], "theirs"),
        (["device.allowMultipleAllocations"], "anybody's"),
        (['device.driver.startsWith("pen")'], "anybody's"),
        ([], "anybody's"),
    ],
)
def test_a_class_that_names_no_driver_may_give_our_devices(expressions, expected):
    selectors = [{"cel": {"expression": one}} for one in expressions]
    assert whose({"metadata": {"name": "c"}, "spec": {"selectors": selectors}}) == expected


def test_pods_and_claims_are_counted_as_kubernetes_reckons_them():
    pod = {
        "metadata": {"name": "p"},
        "spec": {
            "initContainers": [
                {**container(memory="10Gi", cores_permille="900"), "name": "first"},
                {**container(memory="1Gi", cores_permille="50"), "name": "beside",
                 "restartPolicy": "Always"},
            ],
            "containers": [
                {**container(memory="2Gi", cores_permille="100", vgpu="2"), "name": "main"},
            ],
        },
    }  # fmt: skip
    assert of_pod(pod) == Amounts(3, 10 << 30, 900)
    assert of_pod({**pod, "status": {"phase": "Succeeded"}}) == Amounts()
    one = {"deviceClassName": "penstock.io", "capacity": {"requests": {"memory": "3Gi"}}}
    small = {"deviceClassName": "penstock.io", "capacity": {"requests": {"coresPermille": "5"}}}
    other = {"deviceClassName": "theirs", "count": 4}
    devices = {
        "requests": [
            {"name": "a", "exactly": {**one, "count": 2}},
            {"name": "b", "firstAvailable": [one, small]},
            {"name": "c", "exactly": other},
        ]
    }
    assert of_claim_spec({"devices": devices}, {"penstock.io"}) == Amounts(3, None, None)
    devices["requests"].pop(1)
    assert of_claim_spec({"devices": devices}, {"penstock.io"}) == Amounts(2, 6 << 30, None)
    assert total([Amounts(1, None, 5), Amounts(1, 7, None)]) == Amounts(2, 7, 5)


def ask(cap, *amounts: Amounts) -> list[str | None]:
    """The cap's answers to claims that come in one batch."""
    batch = [_Asked(f"{n}", one, dry=False, answer=None) for n, one in enumerate(amounts)]
    return _answers(cap, batch)[0]


def cap_of(*, hard: dict, used: dict):
    about = {"namespace": "n", "name": "default", "resourceVersion": "1"}
    return read_cap({"metadata": about, "spec": {"hard": hard}, "status": {"used": used}})


def test_held_and_just_admitted_amounts_count_together_against_a_cap_to_the_byte():
    cap = cap_of(hard={"memory": "40Gi"}, used={"vgpus": 2, "memoryBytes": 20 << 30})
    ten, byte = Amounts(1, 10 << 30, 100), Amounts(1, 1, 0)
    *admitted, refused = ask(cap, ten, ten, byte)
    assert admitted == [None, None]
    assert "40Gi of 40Gi taken" in refused
    refused, admitted = ask(cap, Amounts(1, (20 << 30) + 1, 0), Amounts(1, 20 << 30, 0))
    assert "20Gi of 40Gi taken" in refused
    assert admitted is None


def test_each_capped_amount_is_counted_separately_and_must_be_stated():
    cap = cap_of(hard={"vgpus": 3, "cores": 60}, used={"vgpus": 1, "coresPermille": 300})
    assert ask(cap, Amounts(2, None, 300)) == [None]  # memory is not capped
    assert "vgpus: 3 requested, 1 of 3 taken" in ask(cap, Amounts(3, 0, 0))[0]
    assert "cores: 30.1% requested, 30% of 60% taken" in ask(cap, Amounts(1, 0, 301))[0]
    assert "caps cores, so requests must state an amount" in ask(cap, Amounts(1, 1 << 30, None))[0]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "appear", "vanish", "fold", "stale fold"]), st.integers(0, 9)
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(steps=STEPS)
def test_the_cap_is_never_exceeded_in_any_order_of_events(steps):
    """Objects are admitted, then made or not, and deleted, while the controller sees it late."""
    cap = read_cap(
        {
            "metadata": {"namespace": "n", "name": "default", "resourceVersion": "1"},
            "spec": {"hard": {"memory": 20}},  # two or three of 5 to 14 are beyond it
            "status": {"used": {}},
        }
    )
    counter = Counter()
    exist: dict[str, Amounts] = {}
    admitted: dict[str, Amounts] = {}  # and not there yet
    looks = [({}, 1)]
    for version, (what, number) in enumerate(steps, 2):
        if what == "admit":
            uid, amounts = f"{version}", Amounts(1, number + 5, 0)
            (answer,), pending = _answers(cap, [_Asked(uid, amounts, dry=False, answer=None)])
            cap = _replaced(cap, cap.used, pending, cap.counted)
            if answer is None:
                admitted[uid] = amounts
        elif what == "appear" and admitted:
            uid = sorted(admitted)[number % len(admitted)]
            exist[uid] = admitted.pop(uid)
        elif what == "vanish" and exist:
            uid = sorted(exist)[number % len(exist)]
            del exist[uid]
            counter.ended(uid)
        elif "fold" in what:
            looks.append((dict(exist), version))
            held, seen = looks[-1 if what == "fold" else number % len(looks)]
            body = counter.fold(cap, held, {"claims": str(seen), "pods": str(seen)})
            if body is not None:
                cap = read_cap({**cap.whole, "status": body["status"]})
        held = total([*exist.values(), *admitted.values()])
        assert (held.memory_bytes or 0) <= 20
        ledger = total([cap.used or Amounts(), *cap.pending.values()])
        assert (ledger.memory_bytes or 0) >= (held.memory_bytes or 0)
