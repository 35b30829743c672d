"""The API client: its rate of requests, its retries at a busy server, and the server's clock."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from email.utils import formatdate

import pytest
from aiohttp import web
from kubernetes_asyncio import client

from penstock.kube.objects.api_client import NODES, PODS, Api, ApiError
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.rate_limit import Pace


@contextlib.asynccontextmanager
async def asked_of(handler, **limits):
    """An Api whose server answers by `handler`, as a real one shows no such faults on demand."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with Api(configuration, **limits) as api:
            yield api
    finally:
        await runner.cleanup()


def test_requests_beyond_the_burst_wait_for_their_turn_in_order():
    async def work():
        pace, went = Pace(50, 5), []

        async def one(number):
            await pace.turn()
            went.append((number, time.monotonic()))

        began_s = time.monotonic()
        await asyncio.gather(*map(one, range(15)))
        assert [number for number, _ in went] == list(range(15))
        assert went[4][1] - began_s < 0.15, "a burst goes at once"
        assert went[-1][1] - began_s >= 10 / 50 * 0.9

    asyncio.run(work())


def test_a_waiting_request_that_is_cancelled_delays_none_behind_it():
    async def work():
        pace = Pace(10, 1)
        await pace.turn()
        waiting = [asyncio.create_task(pace.turn()) for _ in range(50)]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        began_s = time.monotonic()
        await pace.turn()
        assert time.monotonic() - began_s < 1, "fifty that gave up would have taken five seconds"

    asyncio.run(work())


def test_a_process_keeps_to_its_limit_of_requests_a_second():
    async def answer(_):
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def work():
        async with asked_of(answer, qps=50, burst=5) as api:
            began_s = time.monotonic()
            await asyncio.gather(*(api.list(PODS) for _ in range(20)))
            assert time.monotonic() - began_s >= 15 / 50 * 0.9

    asyncio.run(work())


def test_a_request_that_a_busy_server_refused_is_retried_when_it_says_and_an_eviction_is_not():
    asked = []

    async def answer(request):
        asked.append((time.monotonic(), request.path))
        busy = len(asked) < 3 or request.path.endswith("/eviction")
        if busy:
            body = {"reason": "TooManyRequests", "message": "too many requests"}
            return web.json_response(body, status=429, headers={"Retry-After": "1"})
        return web.json_response({"metadata": {"name": "one"}})

    async def work():
        async with asked_of(answer) as api:
            assert (await api.get(NODES, "one"))["metadata"]["name"] == "one"
            assert len(asked) == 3
            assert asked[2][0] - asked[0][0] >= 1.5
            with pytest.raises(ApiError) as refused:
                await api.create(PODS, {}, "here", "pod", "eviction")
            assert (refused.value.status, len(asked)) == (429, 4)

    asyncio.run(work())


def test_a_server_that_stays_too_busy_is_a_temporary_error():
    async def answer(_):
        return web.Response(status=429, headers={"Retry-After": "0"})

    async def work():
        async with asked_of(answer) as api:
            with pytest.raises(ApiError) as refused:
                await api.get(NODES, "one")
            assert refused.value.is_passing

    asyncio.run(work())


def test_the_servers_clock_is_read_from_its_answers():
    ahead_s = 5000

    async def answer(_):
        date = formatdate(time.time() + ahead_s, usegmt=True)
        return web.json_response({"metadata": {"name": "one"}}, headers={"Date": date})

    async def work():
        async with asked_of(answer) as api:
            assert abs(api.now_s() - time.time()) < 1, "before an answer it is ours"
            await api.get(NODES, "one")
            assert abs(api.now_s() - time.time() - ahead_s) < 3

    asyncio.run(work())


class Watch:
    """A server that sends `lines` in answer to a watch, or an error."""

    def __init__(self, *events, refusal: int = 0) -> None:
        self.events = events
        self.refusal = refusal
        self.queries: list[dict[str, str]] = []

    async def answer(self, request):
        query = dict(request.query)
        self.queries.append(query)
        if query.get("watch") != "true":
            items = [one for kind, one in self.events if kind == "ADDED"]
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": items})
        if self.refusal and "sendInitialEvents" in query:
            return web.json_response({"message": "forbidden"}, status=self.refusal)
        answer = web.StreamResponse()
        await answer.prepare(request)
        if "sendInitialEvents" in query:
            for kind, one in self.events:
                await answer.write(json.dumps({"type": kind, "object": one}).encode() + b"\n")
        await asyncio.sleep(30)
        return answer


def a_node(name: str, **more: object):
    return {"metadata": {"name": name, "resourceVersion": "5", **more}}


ALL = ("BOOKMARK", a_node("", annotations={"k8s.io/initial-events-end": "true"}))


@contextlib.asynccontextmanager
async def cached(api, read, **options):
    cache = Cache(api, NODES, read, **options)
    running = asyncio.create_task(cache.run())
    try:
        yield cache
        assert not running.done(), "it goes on for ever"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_cache_lists_through_a_watch_without_a_read_of_the_store(fresh):
    server = Watch(("ADDED", a_node("a")), ("ADDED", a_node("b")), ALL)

    async def work():
        async with (
            asked_of(server.answer) as api,
            cached(api, lambda one: one["metadata"]["name"], fresh=fresh) as cache,
        ):
            await asyncio.wait_for(cache.ready(), 10)
            assert set(cache.objects.values()) == {"a", "b"}
        (query,) = server.queries
        assert query["resourceVersionMatch"] == "NotOlderThan"
        assert query.get("resourceVersion") == (None if fresh else "0")

    asyncio.run(work())


@pytest.mark.parametrize("refusal", [400, 422])
def test_a_server_that_cannot_start_a_watch_with_a_list_is_asked_for_a_list(refusal):
    server = Watch(("ADDED", a_node("a")), refusal=refusal)

    async def work():
        async with asked_of(server.answer) as api, cached(api, lambda _: 1) as cache:
            await asyncio.wait_for(cache.ready(), 10)
            assert list(cache.objects) == [("", "a")]
        lists = [query for query in server.queries if "watch" not in query]
        assert [query["resourceVersion"] for query in lists] == ["0"], "from memory"

    asyncio.run(work())


def test_an_object_that_cannot_be_read_ends_no_cache_and_keeps_its_last_state():
    server = Watch(
        ("ADDED", a_node("good", value=1)), ("ADDED", a_node("bad")), ALL,
        ("MODIFIED", a_node("good")), ("ADDED", a_node("new", value=3)),
    )  # fmt: skip
    told = []

    async def work():
        async with (
            asked_of(server.answer) as api,
            cached(
                api,
                lambda one: one["metadata"]["value"],
                report=lambda event, **fields: told.append((event, fields["part"])),
            ) as cache,
        ):
            await asyncio.wait_for(cache.ready(), 10)
            while ("", "new") not in cache.objects:
                await asyncio.sleep(0.01)
            assert cache.objects == {("", "good"): 1, ("", "new"): 3}
        assert told == [("problem", "nodes bad"), ("problem", "nodes good")]

    asyncio.run(work())


def test_a_watch_that_sends_no_json_is_tried_again():
    class Torn(Watch):
        async def answer(self, request):
            if len(self.queries) < 1:
                self.queries.append({})
                return web.Response(body=b'{"type": "ADDED", "obj\n')
            return await super().answer(request)

    server = Torn(("ADDED", a_node("a")), ALL)

    async def work():
        async with asked_of(server.answer) as api, cached(api, lambda _: 1) as cache:
            await asyncio.wait_for(cache.ready(), 10)

    asyncio.run(work())
