"""Deployments follow their load on a real cluster, whichever controller leads."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from kubernetes import client
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.support import controlling
from tests.kube.support.waiting import until

if TYPE_CHECKING:
    from tests.kube.support.controlling import Things
    from typing_extensions import Self

pytestmark = pytest.mark.kube

PORT = controlling.PAGES_PORT
# An eighth of a processor while the page says "burn", however busy the machine is; the Pod requests
# a twenty-fifth.
BURNER = f"""
import threading, time, urllib.request
burning = False
def ask():
    global burning
    while True:
        try:
            with urllib.request.urlopen("http://{API_ADDRESS}:{PORT}/load", timeout=5) as page:
                burning = page.read().strip() == b"burn"
        except OSError:
            pass
        time.sleep(3)  # on a busy machine each question costs milliseconds: at rest next to nothing
threading.Thread(target=ask, daemon=True).start()
while True:
    spent, began = time.process_time(), time.monotonic()
    while burning:
        if time.process_time() - spent > (time.monotonic() - began) / 8:
            time.sleep(0.02)
    time.sleep(0.2)
"""


@dataclass
class Watched:
    """Every count of replicas that a Deployment was given, in turn."""

    things: Things
    name: str
    counts: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self.done.wait(0.2):
            count = self.things.replicas(self.name)
            if self.counts[-1:] != [count]:
                self.counts.append(count)


def test_replicas_follow_the_load_up_and_down_and_a_killed_leader_changes_nothing(
    cluster, pods, things, controllers, pages
):
    """The kubelets' figures lead from one replica to five and back.

    Each Pod burns as much as the first.
    """
    (pages / "load").write_text("burn")
    things.deployment("web", "python3", "-c", BURNER, cpu="40m")
    things.policy(
        "web",
        selector={"matchLabels": {"app": "web"}},
        scale={
            "min": 1, "max": 5, "stabilization": "8s",
            "metrics": {"cpu": {"up": 80, "down": 40}},
        },
    )  # fmt: skip
    with Watched(things, "web") as watched:
        until("it grows", lambda: things.replicas("web") > 1, within_s=90)
        killed = controllers.leader()
        controllers.kill(killed)
        controllers.start("third")
        until("it has grown to five", lambda: things.replicas("web") == 5, within_s=120)
        until("another leads", lambda: controllers.leader() not in {None, killed})
        until(
            "all five run and are said to",
            lambda: (
                things.target("web").get("replicas") == 5
                and things.target("web").get("metrics", {}).get("cpu", 0) > 80
                # not so at once when one step led to just five
                and "max is 5" in things.target("web")["reason"]
            ),
            within_s=90,
        )
        (pages / "load").write_text("rest")
        until("it shrinks to one", lambda: things.replicas("web") == 1, within_s=120)
        time.sleep(10)  # longer than the window: what flaps shows it now
    assert watched.counts[0] == 1
    top = watched.counts.index(5)
    assert watched.counts[: top + 1] == sorted(set(watched.counts[: top + 1])), watched.counts
    assert watched.counts[top:] == sorted(set(watched.counts[top:]), reverse=True), watched.counts
    events = cluster.core.list_namespaced_event(
        pods.namespace, field_selector="reason=Scaled,involvedObject.kind=Deployment"
    ).items
    assert events
    assert "→" in events[0].message


def a_stateful_set_is_scaled_as_well(pods, things, cpu: dict[str, object]) -> None:
    """A StatefulSet is scaled, here to its minimum."""
    labels = {"app": "stored"}
    container = {
        "name": "main", "image": "penstock.test/debian:1", "command": ["sleep", "1000"],
    }  # fmt: skip
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"serviceName": "", "selector": {"matchLabels": labels}, "template": template}
    things.apps.create_namespaced_stateful_set(
        pods.namespace, {"metadata": {"name": "stored"}, "spec": spec}
    )
    things.policy("stored", selector={"matchLabels": labels}, scale={**cpu, "min": 2})
    until("the set is scaled", lambda: things.target("stored").get("replicas") == 2)
    assert things.target("stored")["kind"] == "StatefulSet"


def test_a_target_with_an_autoscaler_is_refused_and_outside_demand_scales_to_zero_and_back(
    cluster, pods, things, pages
):
    notes = {
        "penstock.io/qps-url": f"http://{API_ADDRESS}:{PORT}/metrics",
        "penstock.io/qps-metric": "requests_per_second",
    }
    things.deployment("served", "sleep", "1000", notes=notes)
    things.deployment("twice", "sleep", "1000", replicas=2)
    client.AutoscalingV2Api(cluster.api).create_namespaced_horizontal_pod_autoscaler(
        pods.namespace,
        {
            "metadata": {"name": "twice-hpa"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "twice"},
                "minReplicas": 2, "maxReplicas": 9,
            },
        },
    )  # fmt: skip

    def demand(figure: float | None) -> None:
        aside = pages / "aside"
        aside.write_text("" if figure is None else f"requests_per_second {figure}\n")
        aside.rename(pages / "metrics")

    def settles(count: int, within_s: float = 40) -> None:
        until(f"{count} replicas", lambda: things.replicas("served") == count, within_s)

    demand(25)
    scale = {"min": 0, "max": 4, "stabilization": "4s", "metrics": {"qps": {"up": 10, "down": 5}}}
    things.policy("served", selector={"matchLabels": {"app": "served"}}, scale=scale)
    cpu = {"min": 1, "max": 4, "metrics": {"cpu": {"up": 80, "down": 40}}}
    things.policy("twice", selector={"matchLabels": {"app": "twice"}}, scale=cpu)
    settles(3)
    demand(None)  # a page that does not say it: nothing shrinks by what is not known
    until("it is said", lambda: "no metric" in things.target("served").get("reason", ""))
    assert things.replicas("served") == 3
    demand(0)
    settles(0)
    demand(7)
    settles(1)

    refused = things.target("twice")
    assert refused["state"] == "Refused"
    assert "HorizontalPodAutoscaler twice-hpa" in refused["reason"]
    assert things.replicas("twice") == 2

    a_stateful_set_is_scaled_as_well(pods, things, cpu)
    # What people turned off stays off, where the policy itself never would.
    things.policy("default-off", selector={"matchLabels": {"app": "off"}}, scale=cpu)
    things.deployment("off", "sleep", "1000", replicas=0)
    until("it is left alone", lambda: things.target("default-off").get("state") == "Off")
    assert things.replicas("off") == 0
