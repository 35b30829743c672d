"""What an agent writes on its Node object, which has no kubelet here."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from tests.kube.support.placing import node

from penstock.kube.kubelet.node_annotation import Announcement
from penstock.kube.objects.api_client import NODES, Api
from penstock.kube.objects.names import BY_CLAIMS, BY_EXTENDER, WAY

pytestmark = pytest.mark.kube
NAME = "announced"


@pytest.fixture
def made(cluster):
    cluster.core.create_node(node(NAME))
    yield
    cluster.core.delete_node(NAME)


@pytest.mark.usefixtures("made")
def test_a_node_is_labelled_by_people_where_both_modes_are_served_and_else_by_its_agent(
    cluster,
):
    def label(value: str | None) -> None:
        cluster.core.patch_node(NAME, {"metadata": {"labels": {WAY: value}}})

    async def after(api: Api, *, people: bool, way: str, labelled: str | None) -> str:
        """The label of the node after the agent has announced it."""
        label(labelled)
        one = Announcement(api, NAME, way, way_is_labelled=people)
        duties = [asyncio.create_task(one.cache.run()), asyncio.create_task(one.run())]
        one.want(())
        end_s = time.monotonic() + 20
        while not one.is_settled and time.monotonic() < end_s:
            await asyncio.sleep(0.02)
        for duty in duties:
            duty.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*duties)
        return str((await api.get(NODES, NAME))["metadata"]["labels"][WAY])

    async def all_of_them() -> None:
        async with await Api.connect(cluster.layout.kubeconfig) as api:
            for way, other in ((BY_CLAIMS, BY_EXTENDER), (BY_EXTENDER, BY_CLAIMS)):
                assert await after(api, people=False, way=way, labelled=other) == way
                assert await after(api, people=True, way=way, labelled=other) == other
                for nothing in (None, "plugin"):  # a Node made anew; what the chart calls the way
                    assert await after(api, people=True, way=way, labelled=nothing) == way

    asyncio.run(all_of_them())
