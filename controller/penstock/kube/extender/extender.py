"""Scheduler extender: filter, prioritize, bind and preempt verbs for Pods with shares.

https://kubernetes.io/docs/concepts/extend-kubernetes/ describes scheduler extenders. Requests
contain the names of the nodes that passed the scheduler's own filters (`nodeCacheCapable`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from penstock.kube.extender.binding import Binder
from penstock.kube.extender.filter_answers import Answers, said_plainly
from penstock.kube.extender.ledger import Ledger, SeenPod, read_node, read_pod
from penstock.kube.extender.nominations import Waiting, read_waiting
from penstock.kube.extender.preemption import Preemption
from penstock.kube.extender.preemption_forecast import Asker, is_enough
from penstock.kube.extender.resizer import Resizer
from penstock.kube.extender.scheduler_lease import Leading
from penstock.kube.extender.unschedulable import Refused
from penstock.kube.objects import http_server as serving
from penstock.kube.objects.api_client import NODES, PODS, Api, ApiError
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.resource_request import read_request
from penstock.model import PenstockError
from penstock.scheduling.placement.fit import score

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.typedefs import Handler

    from penstock.kube.objects.api_client import Object
    from penstock.kube.objects.cache import Key
    from penstock.scheduling.placement.fit import Policy

BEST_SCORE = 10  # MaxExtenderPriority
MOST_REMEMBERED = 20_000  # Pods between filter and bind
READY_WITHIN_S = 20.0  # the scheduler waits thirty seconds
ASK_AGAIN_S = 0.1
BUCKETS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5)


class Extender:
    """Serves one scheduler, for the Pods of its profile `scheduler`."""

    def __init__(
        self,
        api: Api,
        scheduler: str,
        *,
        of_nodes: Policy = "binpack",
        of_devices: Policy = "binpack",
        preemption: bool = True,
        report: Callable[..., None] = lambda *_, **__: None,
        lease: tuple[str, str] | None = None,
    ) -> None:
        """`lease` is the namespace and name of the scheduler's Lease, or None for one replica."""
        self._api = api
        self._scheduler = scheduler
        self._of_nodes = of_nodes
        self.ledger = Ledger(report)
        self._answers = Answers(self.ledger)
        # A list must contain the last placements of another extender. Otherwise this extender
        # would allocate the same shares again.
        self._nodes = Cache(api, NODES, read_node, fresh=True, report=report)
        # Pods are selected by schedulerName, because nobody can change this field, unlike a label.
        self._pods: Cache[SeenPod | Waiting] = Cache(
            api, PODS, _read_pod, fields=f"spec.schedulerName={scheduler}", fresh=True,
            report=report,
        )  # fmt: skip
        self._nodes.changed.append(self.ledger.node_changed)
        self._pods.changed.append(self._pod_changed)
        self._binder = Binder(api, self.ledger, of_devices, report, self._leads)
        self._leading = Leading(api, *lease) if lease else None
        self._term_s: float | None = None  # start of the term for which all objects were listed
        self._renewing = asyncio.Lock()
        self._resizer = Resizer(api, self.ledger, self._pods, report=report, leads=self._may_change)
        self._refused = Refused(api, self.ledger, report)
        self._askers: OrderedDict[str, Asker] = OrderedDict()  # by uid of the Pod
        self._registry = CollectorRegistry()
        self._decided = Histogram(
            "penstock_place_decision_seconds",
            "Time to respond to the scheduler, without waiting for the API server.",
            ["verb"], registry=self._registry, buckets=BUCKETS_S,
        )  # fmt: skip
        self._bound = Counter(
            "penstock_place_bindings", "Bindings, by outcome.", ["result"],
            registry=self._registry,
        )  # fmt: skip
        evictions = Counter(
            "penstock_place_evictions", "Evictions for Pods of a higher priority, by outcome.",
            ["result"], registry=self._registry,
        )  # fmt: skip
        self._preemption = (
            Preemption(
                api, self.ledger, of_devices, report, lambda end: evictions.labels(end).inc()
            )
            if preemption
            else None
        )

    def app(self) -> web.Application:
        """The HTTP routes: the scheduler's verbs, probes and metrics."""
        app = web.Application(client_max_size=serving.MOST_BYTES, middlewares=[_understood])
        app.router.add_post("/filter", self._filter)
        app.router.add_post("/prioritize", self._prioritize)
        app.router.add_post("/bind", self._bind)
        app.router.add_post("/preempt", self._preempt)
        app.router.add_get("/metrics", self._metrics)
        serving.probes(app, self.why_not_ready)
        return app

    async def run(self) -> None:
        """Follows the API server until cancelled."""
        tasks = [
            self._nodes.run(),
            self._pods.run(),
            self._binder.look_after_unseen(),
            self._resizer.run(),
            self._refused.run(self._may_change),
        ]
        if self._leading:
            tasks += [self._leading.run(), self._begin_terms(self._leading)]
        if self._preemption:
            tasks.append(self._preemption.run(self._scheduler, self._may_change))
        await asyncio.gather(*tasks)

    def _leads(self) -> bool:
        return self._leading is None or self._leading()

    def _may_change(self) -> bool:
        """Whether this process may change placements, with a leading scheduler and full caches."""
        return not self.why_not_ready() and not self._is_new_term()

    def why_not_ready(self) -> str:
        """Why it cannot serve requests yet; empty if it can.

        Before all Pods are listed, it would allocate shares twice.
        """
        waits = [
            name for name, cache in (("nodes", self._nodes), ("pods", self._pods))
            if not cache.is_ready
        ]  # fmt: skip
        return f"not listed yet: {', '.join(waits)}" if waits else ""

    async def _filter(self, http: web.Request) -> web.Response:
        args, began_s = await self._read(http)
        try:
            asker = self._asker(args["Pod"])
            names = self._answers.names(args["NodeNames"] or [])
        except PenstockError as error:
            return _answer({"NodeNames": [], "Error": str(error)})
        if asker is None:  # the scheduler sends only Pods that request Penstock's resources
            return _answer({"NodeNames": names})
        found = self._answers.of(names, asker)
        if found.fits:
            self._refused.forget(asker.uid)
        else:
            metadata = args["Pod"]["metadata"]
            self._refused.told((metadata["namespace"], metadata["name"]), asker)
            if self._preemption:
                self._preemption.wanted(args["Pod"], asker.request, names)
        self._decided.labels("filter").observe(time.perf_counter() - began_s)
        return web.Response(body=found.body, content_type="application/json")

    async def _prioritize(self, http: web.Request) -> web.Response:
        args, began_s = await self._read(http)
        names = [name for name in args["NodeNames"] or [] if name in self.ledger.nodes]
        scores = score([self.ledger.nodes[name] for name in names], self._of_nodes, BEST_SCORE)
        # The JSON text is built by hand, because five hundred objects per Pod would keep the
        # garbage collector busy. Node names that the API server accepted need no escaping.
        hosts = [f'{{"Host":"{n}","Score":{s}}}' for n, s in zip(names, scores, strict=True)]
        answer = web.Response(text=f"[{','.join(hosts)}]", content_type="application/json")
        self._decided.labels("prioritize").observe(time.perf_counter() - began_s)
        return answer

    async def _bind(self, http: web.Request) -> web.Response:
        args, _ = await self._read(http)
        namespace, name, uid = args["PodNamespace"], args["PodName"], args["PodUID"]
        try:
            asker = self._askers.get(uid) or await self._asked(namespace, name, uid)
            await self._binder.bind(namespace, name, asker, args["Node"])
        except PenstockError as error:
            self._bound.labels("refused").inc()
            return _answer({"Error": str(error)})
        self._askers.pop(uid, None)
        self._bound.labels("bound").inc()
        return _answer({})

    async def _preempt(self, http: web.Request) -> web.Response:
        """Keeps the candidate nodes where the scheduler's evictions also free enough devices."""
        args, _ = await self._read(http)
        try:
            asker = self._asker(args["Pod"])
        except PenstockError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        found = args.get("NodeNameToMetaVictims") or {}
        if asker is None:
            return _answer({"NodeNameToMetaVictims": found})
        enough = {
            name: victims for name, victims in found.items()
            if is_enough(self.ledger, name, asker, {one["UID"] for one in victims["Pods"]})
        }  # fmt: skip
        return _answer({"NodeNameToMetaVictims": enough})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry))

    async def _read(self, http: web.Request) -> tuple[Object, float]:
        """The body of a request, and the time.perf_counter() at which it was complete.

        Until the caches are ready, requests wait instead of failing. After a failure the scheduler
        would try the next Pod, then the next, and record an error on each of thousands of Pods.

        Raises:
            web.HTTPBadRequest: the body is not a JSON object.
            web.HTTPServiceUnavailable: the caches are still not ready, or the scheduler does not
                lead.
        """
        if self.why_not_ready() or self._is_new_term():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._known(), READY_WITHIN_S)
            if self._is_new_term():
                raise web.HTTPServiceUnavailable(text="this extender's scheduler does not lead")
            if why := self.why_not_ready():
                raise web.HTTPServiceUnavailable(text=why)
        if self._preemption:
            self._preemption.restore()
        body = await http.read()
        began_s = time.perf_counter()
        args = json.loads(body)
        if not isinstance(args, dict):
            raise web.HTTPBadRequest(text="the body is not a JSON object")
        return args, began_s

    def _is_new_term(self) -> bool:
        """Whether another extender may have placed Pods since the objects were listed here."""
        return self._leading is not None and (
            self._leading.since_s is None or self._leading.since_s != self._term_s
        )

    async def _begin_terms(self, leading: Leading) -> None:
        """Starts each term immediately, so that resizes do not wait for a Pod to be scheduled."""
        while True:
            if leading.since_s is not None and self._is_new_term():
                await self._known()
            await asyncio.sleep(ASK_AGAIN_S)

    async def _known(self) -> None:
        """Returns once the caches are no older than the start of our scheduler's leadership.

        Older caches may lack the last placements of another extender.
        """
        async with self._renewing:
            while self._leading is not None and self._is_new_term():
                since_s = self._leading.since_s
                if since_s is None:
                    await asyncio.sleep(ASK_AGAIN_S)
                    continue
                self._nodes.renew()
                self._pods.renew()
                await asyncio.gather(self._nodes.ready(), self._pods.ready())
                self._term_s = since_s
        await asyncio.gather(self._nodes.ready(), self._pods.ready())

    def _pod_changed(
        self, key: Key, old: SeenPod | Waiting | None, new: SeenPod | Waiting | None
    ) -> None:
        self.ledger.pod_changed(
            key,
            old if isinstance(old, SeenPod) else None,
            new if isinstance(new, SeenPod) else None,
        )
        if self._preemption:
            self._preemption.pod_changed(key, old, new)

    def _asker(self, pod: Object) -> Asker | None:
        found = _read_asker(pod)
        if found is not None:
            self._askers[found.uid] = found
            self._askers.move_to_end(found.uid)
            if len(self._askers) > MOST_REMEMBERED:
                self._askers.popitem(last=False)
        return found

    async def _asked(self, namespace: str, name: str, uid: str) -> Asker:
        """Reads the Asker of a Pod that was filtered before this process started."""
        found = _read_asker(await self._api.get(PODS, name, namespace))
        if found is None or found.uid != uid:
            raise ApiError(
                f"Pod {namespace}/{name} is not the Pod to bind",
                "it was created again, or requests no device",
                "do nothing: the scheduler retries it",
                404, "NotFound",
            )  # fmt: skip
        return found


def _read_asker(pod: Object) -> Asker | None:
    request = read_request(pod)
    if request is None:
        return None
    return Asker(pod["metadata"]["uid"], pod["spec"].get("priority") or 0, request)


def _read_pod(one: Object) -> SeenPod | Waiting | None:
    return read_pod(one) or read_waiting(one)


@web.middleware
async def _understood(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise web.HTTPBadRequest(
            text=f"malformed scheduler request: {type(error).__name__}: {error}"
        ) from error


def _answer(body: object) -> web.Response:
    text = said_plainly(json.dumps(body, separators=(",", ":")))
    return web.Response(body=text.encode(), content_type="application/json")
