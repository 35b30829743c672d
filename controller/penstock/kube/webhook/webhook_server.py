"""HTTPS server of the admission webhook, and its TLS certificate."""

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


MUTATE, VALIDATE = "mutate", "validate"  # the first part of a path; the second is the secret word


def app(
    reviewer: Reviewer, why_not_ready: Callable[[], str], word: Callable[[], str | None]
) -> web.Application:
    """The application with the routes /mutate/WORD, /validate/WORD and probes.

    Every Pod of the cluster can reach this server, whose reviews reserve quantities in caps. So the
    paths contain a secret word, which only the API server knows, from configurations that no tenant
    may read. `word` returns the current word, or an empty text until it is known. If it returns
    None, there is no word, and clients of /mutate and /validate must present a certificate.
    """

    async def mutate(http: web.Request) -> web.Response:
        return await answer(http, may_patch=True)

    async def validate(http: web.Request) -> web.Response:
        return await answer(http, may_patch=False)

    async def answer(http: web.Request, *, may_patch: bool) -> web.Response:
        wanted = word()
        if wanted is None:
            if http.get_extra_info("peercert") is None:
                raise web.HTTPForbidden(text="present the API server's client certificate\n")
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
    """The certificate for new connections. Existing connections keep the one they began with."""

    def __init__(self, client_ca: Path | None = None) -> None:
        """`client_ca` is a PEM file with the authority of the API server's client certificate.

        Raises:
            PenstockError: the file cannot be read.
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
            self.context.verify_mode = ssl.CERT_OPTIONAL  # kubelets send probes without one

    def use(self, certificates: Certificates) -> None:
        """Uses these certificates from now on."""
        if self._loaded == certificates:
            return
        # The library reads only files, so these are private and removed at once.
        with tempfile.TemporaryDirectory(prefix="penstock-admit-") as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(certificates.server)
            key.touch(mode=0o600)
            key.write_bytes(certificates.server_key)
            self.context.load_cert_chain(certificate, key)
        self._loaded = certificates

    def use_files(self, certificate: Path, key: Path) -> bool:
        """Uses the certificate and key in two files; returns whether the files had changed.

        While only one file of a new pair has been written, the previous pair stays in use.

        Raises:
            PenstockError: the files cannot be read, or do not match.
        """
        try:
            found = [(one.stat().st_mtime_ns, one.stat().st_ino) for one in (certificate, key)]
            if found == self._loaded:
                return False
            # A mismatched pair would leave the context without a certificate, so it is tried on
            # another context first.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            self.context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise PenstockError(
                f"the certificate {certificate} and its key {key} cannot be used", str(error),
                "write both as PEM",
            ) from error  # fmt: skip
        self._loaded = found
        return True
