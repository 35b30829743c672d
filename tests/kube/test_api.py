"""The API client and its cache, on a real API server that fails."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import signal
import time
import warnings

import pytest

from penstock.kube.objects.api_client import PODS, Api, ApiError, Kind
from penstock.kube.objects.cache import Cache
from penstock.model import PenstockError

pytestmark = pytest.mark.kube

MAPS = Kind("v1", "configmaps")


@contextlib.asynccontextmanager
async def cached(api: Api, **where: str):
    cache = Cache(api, MAPS, lambda one: (one.get("data") or {}).get("word"), **where)
    running = asyncio.create_task(cache.run())
    try:
        await asyncio.wait_for(cache.ready(), 30)
        yield cache
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(look, within_s: float = 60):
    end = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def a_map(name: str, word: str, **labels: str):
    return {"metadata": {"name": name, "labels": labels}, "data": {"word": word}}


def test_objects_are_made_read_changed_and_removed_and_refusals_say_what_to_do(cluster, pods):
    async def work():
        async with await Api.connect(cluster.layout.kubeconfig) as api:
            made = await api.create(MAPS, a_map("one", "a"), pods.namespace)
            with pytest.raises(ApiError) as twice:
                await api.create(MAPS, a_map("one", "b"), pods.namespace)
            assert (twice.value.status, twice.value.code) == (409, "AlreadyExists")
            assert "one" in str(twice.value)
            changed = await api.patch(MAPS, "one", {"data": {"word": "c"}}, pods.namespace)
            assert changed["data"] == {"word": "c"}
            with pytest.raises(ApiError) as stale:  # written by whoever read it before the change
                await api.replace(MAPS, {**made, "data": {"word": "d"}}, pods.namespace)
            assert stale.value.code == "Conflict"
            applied = await api.patch(
                MAPS, "two",
                {"apiVersion": "v1", "kind": "ConfigMap", **a_map("two", "e")},
                pods.namespace, way="apply", manager="test",
            )  # fmt: skip
            assert applied["data"]["word"] == "e"
            with pytest.raises(ApiError):
                await api.delete(MAPS, "two", pods.namespace, uid=made["metadata"]["uid"])
            await api.delete(MAPS, "two", pods.namespace)
            await api.delete(MAPS, "two", pods.namespace)  # gone is gone
            with pytest.raises(ApiError) as missing:
                await api.get(MAPS, "two", pods.namespace)
            assert (missing.value.status, missing.value.is_passing) == (404, False)

    asyncio.run(work())


def test_long_lists_are_read_completely(cluster, pods):
    async def work():
        async with await Api.connect(cluster.layout.kubeconfig) as api:
            names = {f"map-{number}" for number in range(1100)}  # three pages
            for block in range(0, 1100, 50):
                wanted = sorted(names)[block : block + 50]
                await asyncio.gather(
                    *(api.create(MAPS, a_map(name, name), pods.namespace) for name in wanted)
                )
            found, _ = await api.list(MAPS, pods.namespace)
            assert names <= {one["metadata"]["name"] for one in found}
            assert (await api.list(PODS, pods.namespace))[0] == []

    asyncio.run(work())


def test_a_cache_stays_current_through_kills_of_the_server_and_expired_versions(cluster, pods):
    async def work():
        where = pods.namespace
        async with (
            await Api.connect(cluster.layout.kubeconfig) as api,
            cached(api, namespace=where, labels="mine=yes") as cache,
        ):
            told = []
            cache.changed.append(lambda key, old, new: told.append((key[1], old, new)))
            await api.create(MAPS, a_map("a", "1", mine="yes"), where)
            await api.create(MAPS, a_map("b", "1", mine="no"), where)
            await until(lambda: (where, "a") in cache.objects)
            await api.patch(MAPS, "a", {"data": {"word": "2"}}, where)
            await until(lambda: cache.objects == {(where, "a"): "2"})
            assert told == [("a", None, "1"), ("a", "1", "2")]

            cluster.process("kube-apiserver").send_signal(signal.SIGKILL)
            await until(lambda: cache.problem is not None)
            assert cache.objects == {(where, "a"): "2"}, "what was known stands meanwhile"
            await until(lambda: cluster.running("kube-apiserver") is not None)

            async def removed():
                with contextlib.suppress(ApiError):
                    await api.delete(MAPS, "a", where)
                    return True

            while not await removed():
                await asyncio.sleep(0.2)
            await until(lambda: not cache.objects)
            await until(lambda: cache.problem is None)
            assert told[-1] == ("a", "2", None)

            cache._version = "1"  # as of one who slept for hours: etcd was compacted meanwhile
            cluster.process("kube-apiserver").send_signal(signal.SIGKILL)
            await until(lambda: cache.problem is not None)
            cache._version = "1"
            word = secrets.token_hex(4)
            while True:
                with contextlib.suppress(ApiError):
                    await api.create(MAPS, a_map("c", word, mine="yes"), where)
                    break
                await asyncio.sleep(0.2)
            await until(lambda: cache.objects == {(where, "c"): word})

    asyncio.run(work())


def test_an_abandoned_watch_leaves_no_connection(cluster, pods):
    async def work():
        began = asyncio.Event()

        async def watch():
            async for _ in api.watch(MAPS, "", pods.namespace):
                began.set()

        async with await Api.connect(cluster.layout.kubeconfig) as api:
            await api.create(MAPS, a_map(secrets.token_hex(4), "a"), pods.namespace)
            watching = asyncio.create_task(watch())
            await asyncio.wait_for(began.wait(), 30)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    gc.collect()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(10):
            asyncio.run(work())
        gc.collect()
    assert not [str(one.message) for one in said]


def test_a_missing_cluster_and_a_missing_server_are_errors_that_say_so(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    nothing = tmp_path / "nothing"
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("clusters: 3\n")
    for file in (nothing, nonsense):
        with pytest.raises(PenstockError, match="--kubeconfig"):
            asyncio.run(Api.connect(file))
    nobody = tmp_path / "nobody"
    nobody.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
    )

    async def ask():
        async with await Api.connect(nobody) as api:
            await api.list(PODS)

    with pytest.raises(ApiError, match="does not respond") as error:
        asyncio.run(ask())
    assert error.value.is_passing
