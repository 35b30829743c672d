"""The webhook's HTTPS server, and the certificate that it shows."""

from __future__ import annotations

import json
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from penstock.kube import serving
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.admit.certificates import Certificates
    from penstock.kube.admit.review import Reviewer


def app(reviewer: Reviewer, why_not_ready: Callable[[], str]) -> web.Application:
    """/mutate, /validate and probes."""

    async def mutate(http: web.Request) -> web.Response:
        return _answer(await reviewer.answer(await http.read(), may_patch=True))

    async def validate(http: web.Request) -> web.Response:
        return _answer(await reviewer.answer(await http.read(), may_patch=False))

    made = web.Application(client_max_size=serving.MOST_BYTES)
    made.router.add_post("/mutate", mutate)
    made.router.add_post("/validate", validate)
    serving.probes(made, why_not_ready)
    return made


def _answer(body: object) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), content_type="application/json")


class Shown:
    """The certificate that new connections are shown; those there are go on with theirs."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: object = None

    def use(self, certificates: Certificates) -> None:
        """Shows them from now on."""
        if self._loaded == certificates:
            return
        # The library takes files only: these are seen by nobody else, and gone at once.
        with tempfile.TemporaryDirectory(prefix="penstock-admit-") as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(certificates.server)
            key.touch(mode=0o600)
            key.write_bytes(certificates.server_key)
            self.context.load_cert_chain(certificate, key)
        self._loaded = certificates

    def use_files(self, certificate: Path, key: Path) -> bool:
        """Shows those of two files if they changed; whether they had. Raises `PenstockError`.

        Half of a pair, written just now, is none: what was shown before is shown on.
        """
        try:
            found = [(one.stat().st_mtime_ns, one.stat().st_ino) for one in (certificate, key)]
            if found == self._loaded:
                return False
            # A pair that does not match would leave a context with neither: tried on another.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            self.context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise PenstockError(
                f"the certificate {certificate} and its key {key} cannot be used", str(error),
                "write both, PEM",
            ) from error  # fmt: skip
        self._loaded = found
        return True
