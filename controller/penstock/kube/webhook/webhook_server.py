"""The webhook's HTTPS server, and the certificate that it shows."""

from __future__ import annotations

import hmac
import json
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from penstock.kube.objects import http_server as serving
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.webhook.admission_review import Reviewer
    from penstock.kube.webhook.certificates import Certificates


MUTATE, VALIDATE = "mutate", "validate"  # the first part of a path; the second is its word


def app(
    reviewer: Reviewer, why_not_ready: Callable[[], str], word: Callable[[], str | None]
) -> web.Application:
    """/mutate/WORD, /validate/WORD and probes.

    Every Pod of a cluster reaches this server, and what it is asked is written into caps: only the
    API server knows the word, by configurations that no tenant may read. `word`: the one that holds
    now, empty before it is known; None: there is none, and callers of /mutate and /validate show a
    certificate.
    """

    async def mutate(http: web.Request) -> web.Response:
        return await answer(http, may_patch=True)

    async def validate(http: web.Request) -> web.Response:
        return await answer(http, may_patch=False)

    async def answer(http: web.Request, *, may_patch: bool) -> web.Response:
        wanted = word()
        if wanted is None:
            if http.get_extra_info("peercert") is None:
                raise web.HTTPForbidden(text="show the API server's certificate\n")
        elif not wanted or not hmac.compare_digest(
            http.match_info.get("word", "").encode(), wanted.encode()
        ):
            raise web.HTTPNotFound
        return _answer(await reviewer.answer(await http.read(), may_patch=may_patch))

    made = web.Application(client_max_size=serving.MOST_BYTES)
    for act, handler in ((MUTATE, mutate), (VALIDATE, validate)):
        made.router.add_post(f"/{act}", handler)
        made.router.add_post(f"/{act}/{{word}}", handler)
    serving.probes(made, why_not_ready)
    return made


def _answer(body: object) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), content_type="application/json")


class Shown:
    """The certificate that new connections are shown; those there are go on with theirs."""

    def __init__(self, client_ca: Path | None = None) -> None:
        """`client_ca`: who signs the certificate that the API server shows as a client (PEM).

        Raises `PenstockError`: it cannot be read.
        """
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: object = None
        if client_ca is not None:
            try:
                self.context.load_verify_locations(client_ca)
            except (OSError, ssl.SSLError) as error:
                raise PenstockError(
                    f"--client-ca {client_ca} cannot be used", str(error), "name a PEM file"
                ) from error
            self.context.verify_mode = ssl.CERT_OPTIONAL  # kubelets, which probe, show none

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
