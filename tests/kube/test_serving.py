"""The port that Kubernetes probes, which any user of the node may hold already."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import aiohttp
import pytest

from penstock.kube.objects import http_server as serving
from penstock.model import PenstockError


async def answered(port: int) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/readyz") as answer,
    ):
        return (await answer.text()).strip()


async def until_answered(port: int) -> str:
    for _ in range(200):
        with contextlib.suppress(aiohttp.ClientError):
            return await answered(port)
        await asyncio.sleep(0.05)
    raise AssertionError("nobody serves probes")


def test_a_port_in_use_is_reported_once_and_served_when_it_is_free(monkeypatch):
    monkeypatch.setattr(serving, "AGAIN_S", 0.1)
    said: list[str] = []

    async def play(held: socket.socket) -> None:
        port = held.getsockname()[1]
        served = asyncio.ensure_future(
            serving.probed(
                lambda: "not yet", ("127.0.0.1", port), lambda event, **_: said.append(event)
            )
        )
        await asyncio.sleep(0.5)
        assert said == ["port is taken"]
        assert not served.done()
        held.close()
        assert await until_answered(port) == "not yet"
        assert said == ["port is taken", "port is free"]
        served.cancel()
        await asyncio.gather(served, return_exceptions=True)
        with pytest.raises(aiohttp.ClientError):
            await answered(port)

    with socket.create_server(("127.0.0.1", 0)) as held:
        asyncio.run(play(held))


def test_an_address_of_another_machine_is_an_error():
    with pytest.raises(PenstockError, match=r"cannot listen on 192\.0\.2\.1:9472"):
        asyncio.run(serving.probed(lambda: "", ("192.0.2.1", 9472), lambda *_, **__: None))
