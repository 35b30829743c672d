"""What is declared once reaches every map: no word is lost on the way to a tenant or a Pod."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import get_args

import pytest
import yaml

from penstock.autoscaling.set_store import SetSpec, SetStore
from penstock.kube.kubelet.pod_events import REASONS
from penstock.kube.objects.names import HELD, KEPT, PLACED
from penstock.kube.objects.opaque_parameters import API_VERSION, KIND, read_parameters
from penstock.kube.objects.terms_annotations import TERMS, read_terms, write_terms
from penstock.kube.webhook.author_warnings import KNOWN
from penstock.model.metric import METRICS, Metric
from penstock.model.terms import MODES, STEPS, Terms
from penstock.node.admission.admit import Request
from penstock.node.enforcement.enforcement_event import event_of
from penstock.node.enforcement.ladder import Change, Step
from penstock.node.rpc import convert
from penstock.node.tenants.grant import DeviceGrant, Grant, read_grant, write_grant
from penstock.node.tenants.state import State
from penstock.policy import load_text
from penstock.policy.resolve import Settings, resolve
from penstock.policy.schema import Metrics
from penstock_api.v1 import agent_pb2 as pb
from penstock_shim.pages import Mode as ShimMode

ROOT = Path(__file__).parents[2]
OTHER = Terms(
    mode="elastic", policy="small", allow_unknown=True, measured="suspend", grace_ns=7 * 10**9
)
NOT_IN_KUBERNETES = {"allow_unknown"}


@pytest.fixture(autouse=True)
def no_term_has_its_default():
    """A new term needs a value here, so that every map below is tried with it."""
    for one in dataclasses.fields(Terms):
        assert getattr(OTHER, one.name) != one.default, one.name


def test_terms_survive_grant_yaml(tmp_path):
    share = DeviceGrant("GPU-1", 0, "H200", 1 << 30, 100, 8 << 30, 0)
    write_grant(tmp_path, Grant("t", (share,), ("x",), "u", "2026-01-01", **OTHER.terms()))
    assert read_grant(tmp_path).terms() == OTHER.terms()


def test_terms_survive_the_agents_api():
    request = Request(("x",), [1 << 30], [100], **OTHER.terms())
    assert convert.request_of(convert.request_to(request)).terms() == OTHER.terms()


def test_terms_survive_the_store_of_replicas(tmp_path):
    request = Request(("x",), [1 << 30], [100], **OTHER.terms())
    store = SetStore(State.open(tmp_path), "set")
    store.directory.mkdir(parents=True)
    store.write_spec(SetSpec("set", request, None))
    assert store.read_spec().request.terms() == OTHER.terms()


def test_terms_of_a_policy_reach_settings_and_resolve_to_themselves():
    text = yaml.safe_dump({
        "apiVersion": "penstock.io/v1alpha1", "kind": "QuotaPolicy", "metadata": {"name": "small"},
        "spec": {
            "limits": {"memory": "1Gi"}, "mode": "elastic", "allowUnknown": True,
            "onExceed": {"measured": "suspend", "grace": "7s"},
        },
    })  # fmt: skip
    spec = load_text(text, "policy.yaml")[0].policy.spec
    assert resolve(Settings.of_policy(spec, "small")) == OTHER
    assert {one.name for one in dataclasses.fields(Settings)} == set(OTHER.terms())


def test_terms_survive_a_claims_parameters_and_a_pods_annotations():
    expected = {k: v for k, v in OTHER.terms().items() if k not in NOT_IN_KUBERNETES}
    parameters = read_parameters({
        "apiVersion": API_VERSION, "kind": KIND, "mode": "elastic", "policy": "small",
        "onExceed": {"measured": "suspend", "grace": "7s"},
    })  # fmt: skip
    assert parameters.given() == expected
    annotations = {**write_terms(parameters), "penstock.io/policy": "small"}
    assert read_terms(annotations, "").given() == expected


def test_annotations_that_only_others_write_are_kept_by_the_webhook_and_known_to_it():
    text = (ROOT / "deploy/kube/webhooks.yaml").read_text()
    listed = text[text.index("says-what-others-wrote") :].partition("[")[2].partition("]")[0]
    assert {word.strip(" '") for word in listed.split(",")} == {PLACED, HELD, *KEPT}
    assert set(TERMS) | set(KEPT) <= KNOWN


def test_every_step_has_its_rung_its_number_its_events_and_its_word_in_the_chart():
    assert [step.name.lower() for step in Step][1:] == list(STEPS)
    assert set(convert.STEPS.values()) == set(STEPS)
    assert len(convert.STEPS) == len(pb.Step.keys()) - 1
    for step in Step:
        assert event_of("t", Change(step, "memory", "GPU-1", "why")).event in REASONS
    schema = json.loads((ROOT / "deploy/helm/penstock/values.schema.json").read_text())
    assert schema["properties"]["agent"]["properties"]["measured"]["enum"] == list(STEPS)


def test_every_mode_is_known_to_the_api_and_to_the_shim():
    assert set(convert.MODES.values()) == set(MODES) == set(get_args(ShimMode))


def test_every_scaling_metric_has_its_names_and_its_key():
    assert set(get_args(Metric)) == set(METRICS) == set(Metrics.model_fields)
    for metric, names in METRICS.items():
        assert (Metrics.model_fields[metric].alias or metric) == names.key
