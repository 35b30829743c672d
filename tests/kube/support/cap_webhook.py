"""A validating webhook with nothing but caps in it.

`python -m tests.kube.support.cap_webhook KUBECONFIG CERTIFICATE KEY PORT` says "ready" when it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from pathlib import Path

from aiohttp import web

from penstock.kube.objects.api_client import Api
from penstock.kube.quota.caps import Caps


async def main(kubeconfig: str, certificate: str, key: str, port: str) -> None:
    async with await Api.connect(Path(kubeconfig)) as api:
        caps = Caps(api)
        running = asyncio.create_task(caps.run())

        async def review(asked: web.Request) -> web.Response:
            request = (await asked.json())["request"]
            reasons = await caps.further(request)
            answer = {"uid": request["uid"], "allowed": not reasons}
            if reasons:
                answer["status"] = {"code": 422, "message": "; ".join(reasons)}
            whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
            return web.json_response({**whole, "response": answer})

        app = web.Application()
        app.router.add_post("/", review)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "10.190.0.1", int(port), ssl_context=tls).start()
        while not caps.is_ready:
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
