"""Autoscaling of a command's replicas on one node, by a policy's `scale`.

`decide` is pure and independent of any machine; `replicas` and `sampling` act on this one; `scaler`
combines them.
"""

from penstock.autoscaling.replica_tenancy import Tenancy
from penstock.autoscaling.replicas import Phase, Replica, ReplicaSet
from penstock.autoscaling.request_rate import Requests
from penstock.autoscaling.sampling import Sampler, window_ns_of
from penstock.autoscaling.scaler import Scaler
from penstock.autoscaling.set_status import SetStatus, statuses, stop
from penstock.autoscaling.set_store import SetSpec, SetStore
from penstock.scheduling.replicas.decide import (
    METRIC_NAMES,
    Decision,
    History,
    Metric,
    Observation,
    ReplicaSample,
    Sample,
    decide,
)

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
