"""Binding: writes a Pod's node and its devices in one update through the API server.

When a response is lost, the update may have happened, or may still happen. So the same Binding is
posted until a response leaves no doubt, and its shares count as allocated until then. Posting a
Binding twice is harmless.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.kube.extender.ledger import FINISHED
from penstock.kube.objects.api_client import PODS, ApiError
from penstock.kube.objects.names import MANAGED, PLACED
from penstock.kube.objects.placement import write_placement
from penstock.model import PenstockError
from penstock.scheduling.placement.fit import place
from penstock.scheduling.placement.pod_request import totals
from penstock.scheduling.placement.reasons import Shortage, grouped

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.extender.ledger import Ledger
    from penstock.kube.extender.preemption_forecast import Asker
    from penstock.kube.objects.api_client import Api, Object
    from penstock.scheduling.placement.fit import Policy

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
ANSWER_WITHIN_S = 20.0  # the scheduler waits thirty seconds
UNSEEN_S = 10.0  # after this time, the API server is asked about a Pod whose Binding was not seen


class Binder:
    """Chooses devices on the node that the scheduler chose, and writes node and devices."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        policy: Policy,
        report: Callable[..., None],
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`leads` returns whether this process is still the one that places Pods."""
        self._leads = leads
        self._api = api
        self._ledger = ledger
        self._policy = policy
        self._report = report
        self._under_way: dict[str, tuple[str, asyncio.Task[None]]] = {}  # by uid: node and task

    async def bind(self, namespace: str, name: str, asker: Asker, node: str) -> None:
        """Binds the Pod. Raises `PenstockError` if it is not bound, or the outcome is unknown."""
        uid = asker.uid
        if uid in self._under_way:
            where, task = self._under_way[uid]
            if where != node:
                raise PenstockError(
                    f"Pod {namespace}/{name} is being bound to {where}",
                    "the API server has not responded yet", "do nothing: the scheduler retries it",
                )  # fmt: skip
        else:
            task = self._begin(namespace, name, asker, node)
        try:
            await asyncio.wait_for(asyncio.shield(task), ANSWER_WITHIN_S)
        except asyncio.TimeoutError as error:
            raise PenstockError(
                f"Pod {namespace}/{name} is not bound yet", "the API server does not respond",
                "check the API server; until it responds, the Binding is posted again",
            ) from error  # fmt: skip

    def _begin(self, namespace: str, name: str, asker: Asker, node: str) -> asyncio.Task[None]:
        """Chooses devices and starts the Binding."""
        # There must be no await before `assume`, so that no two Pods get the same share.
        uid, request = asker.uid, asker.request
        problem = self._ledger.problem(node)
        found = Shortage("said", text=problem) if problem else None
        with self._ledger.seen_by(uid, asker.priority):
            placement = found or place(self._ledger.nodes[node], request, self._policy)
        if isinstance(placement, Shortage):
            why = grouped({node: placement})[node]
            raise PenstockError(
                f"Pod {namespace}/{name} no longer fits on {node}",
                f"{why}: another Pod was placed there first",
                "do nothing: the scheduler retries it",
            )  # fmt: skip
        roles = [(ask.container, ask.role) for ask in request.asks]
        self._ledger.assume(uid, (namespace, name), node, totals(placement, roles))
        body: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid,
                "annotations": {PLACED: write_placement(placement)},
                "labels": {MANAGED: "true"},
            },
            "target": {"kind": "Node", "name": node},
        }
        task = asyncio.create_task(self._until_known(namespace, name, uid, body))
        self._under_way[uid] = node, task
        task.add_done_callback(lambda _: self._under_way.pop(uid, None))
        # If the scheduler has given up, nothing awaits this task any more.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _until_known(self, namespace: str, name: str, uid: str, body: Object) -> None:
        wait_s = FIRST_WAIT_S
        in_doubt = False
        while True:
            try:
                await self._api.create(PODS, body, namespace, name, "binding")
            except ApiError as error:
                if error.status == 409 and await self._is_ours(namespace, name, uid, body):
                    return  # an earlier attempt, whose response was lost, has succeeded
                # After an attempt with an unknown outcome, only these two codes rule it out.
                if not error.is_passing and (not in_doubt or error.status in {404, 409}):
                    self._ledger.release(uid)
                    raise
                if not in_doubt:
                    self._report("binding-unanswered", pod=f"{namespace}/{name}", why=str(error))
                in_doubt = True
            else:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
            if not self._leads():  # a new leader may have allocated the room to other Pods
                self._ledger.release(uid)
                raise PenstockError(
                    f"Pod {namespace}/{name} is not bound by this process",
                    "another scheduler leads now",
                    "do nothing: the leader places it, unless it is already bound",
                )  # fmt: skip

    async def _is_ours(self, namespace: str, name: str, uid: str, body: Object) -> bool:
        """Whether the Pod has the node and devices of this Binding; retries until this is known."""
        while True:
            try:
                pod = await self._api.get(PODS, name, namespace)
            except ApiError as error:
                if not error.is_passing:
                    return False
                await asyncio.sleep(LONGEST_WAIT_S)
                continue
            metadata = pod["metadata"]
            written = (metadata.get("annotations") or {}).get(PLACED)
            return bool(
                metadata["uid"] == uid
                and pod["spec"].get("nodeName") == body["target"]["name"]
                and written == body["metadata"]["annotations"][PLACED]
            )

    async def look_after_unseen(self) -> None:
        """Releases Pods that were deleted before their Binding was seen, until cancelled."""
        since: dict[str, float] = {}
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(UNSEEN_S / 4)
            unseen = {
                uid: pod for uid, pod in self._ledger.assumed().items()
                if uid not in self._under_way
            }  # fmt: skip
            since = {uid: since.get(uid, clock()) for uid in unseen}
            for uid, pod in unseen.items():
                if clock() - since[uid] > UNSEEN_S:
                    await self._release_if_gone(uid, *pod)

    async def _release_if_gone(self, uid: str, namespace: str, name: str) -> None:
        try:
            pod = await self._api.get(PODS, name, namespace)
        except ApiError as error:
            if error.status == 404:
                self._ledger.release(uid)
            return
        if pod["metadata"]["uid"] != uid or (pod.get("status") or {}).get("phase") in FINISHED:
            self._ledger.release(uid)
