"""Replicas of a command, as many as a policy's `scale` asks for: decide, sample, keep, loop.

`decide` is pure and knows no machine; `replicas` and `sample` know this one; `scaler` joins them.
"""

from penstock.scale.decide import (
    METRIC_NAMES,
    Decision,
    History,
    Metric,
    Observation,
    ReplicaSample,
    Sample,
    decide,
)
from penstock.scale.replicas import Phase, Replica, ReplicaSet
from penstock.scale.requests import Requests
from penstock.scale.sample import Sampler, window_ns_of
from penstock.scale.scaler import Scaler
from penstock.scale.status import SetStatus, statuses, stop
from penstock.scale.store import SetSpec, SetStore
from penstock.scale.tenancy import Tenancy

__all__ = [
    "METRIC_NAMES",
    "Decision",
    "History",
    "Metric",
    "Observation",
    "Phase",
    "Replica",
    "ReplicaSample",
    "ReplicaSet",
    "Requests",
    "Sample",
    "Sampler",
    "Scaler",
    "SetSpec",
    "SetStatus",
    "SetStore",
    "Tenancy",
    "decide",
    "statuses",
    "stop",
    "window_ns_of",
]
