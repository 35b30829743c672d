"""Data that is trusted only so far: lists, clocks of other machines, pools of other nodes."""

from __future__ import annotations

import time

from tests.kube.support.ledger_objects import pod

from penstock.kube.controller.cluster_snapshot import devices_of, read_claim, read_slice
from penstock.kube.extender.ledger import read_pod
from penstock.kube.extender.preemption_forecast import ForecastInput
from penstock.kube.extender.scheduler_lease import Leading


def lease(holder: str, renewed: str):
    spec = {"holderIdentity": holder, "renewTime": renewed}
    return {"metadata": {"namespace": "n", "name": "l", "resourceVersion": "1"}, "spec": spec}


def test_a_renewal_that_was_first_seen_in_a_list_is_of_an_unknown_age():
    leading = Leading(None, "n", "l", host="me")
    cache = leading._cache

    def come(one) -> None:
        cache._take(("n", "l"), cache._reduced(one))

    come(lease("me_1", "1"))
    cache._have_all({("n", "l")}, "1")
    assert not leading(), "what is seen first may be old"
    come(lease("me_1", "2"))
    assert leading()
    since_s = leading.since_s
    leading._renewed_s -= 11  # the watch broke, and nothing was heard
    cache._version = ""
    come(lease("me_1", "3"))  # by a list
    cache._have_all({("n", "l")}, "3")
    assert not leading(), "it may have been renewed long ago, and another may lead"
    come(lease("me_1", "4"))
    assert leading()
    assert leading.since_s > since_s, "a term of its own"
    cache._version = ""
    come(lease("other_1", "5"))
    assert not leading(), "that somebody else leads is so at once"


def test_whether_a_pod_ends_soon_is_judged_by_the_servers_clock():
    """The API server's clock is two minutes ahead."""
    server_s = time.time() + 120
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(server_s + 30))
    going = read_pod(pod("u", "n", 100, deletionTimestamp=stamp))
    assert ForecastInput(now_s=server_s).is_going(going)
    assert not ForecastInput(now_s=time.time()).is_going(going), "by ours it took too long"


def a_slice(node: str, pool: str, generation: int, memory: str = "80Gi"):
    capacity = {"memory": {"value": memory}, "coresPermille": {"value": "1000"}}
    return {
        "metadata": {"name": f"{node}-{pool}"},
        "spec": {
            "driver": "penstock.io", "nodeName": node,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": "d", "capacity": capacity}],
        },
    }  # fmt: skip


def test_a_slice_of_one_node_that_names_anothers_pool_changes_nothing():
    claim = read_claim({
        "metadata": {"namespace": "n", "name": "c", "uid": "c"}, "spec": {},
        "status": {"allocation": {"devices": {"results": [{
            "driver": "penstock.io", "pool": "b", "device": "d",
            "consumedCapacity": {"memory": "30Gi", "coresPermille": "300"},
        }]}}},
    })  # fmt: skip
    slices = [a_slice("b", "b", 3), a_slice("a", "b", 10**9, "1Ti"), a_slice("a", "a", 1)]
    found = devices_of([one for one in map(read_slice, slices) if one], [claim])
    assert {node: len(one.devices) for node, one in found.items()} == {"a": 1, "b": 1}
    assert found["b"].taken("b/d").cores_permille == 300
    assert found["a"].is_untaken
