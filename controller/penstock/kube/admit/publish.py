"""Keeps the webhook's certificates in a Secret, and what is trusted in its configurations."""

from __future__ import annotations

import asyncio
import base64
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.admit.certificates import Certificates, Lives, utc_now
from penstock.kube.api import Api, ApiError, Kind, Object

if TYPE_CHECKING:
    from collections.abc import Callable

SECRETS = Kind("v1", "secrets")
CONFIGURATIONS = tuple(
    Kind("admissionregistration.k8s.io/v1", plural, namespaced=False)
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)
KEYS = {
    "ca.crt": "trusted", "ca.key": "authority_key", "tls.crt": "server", "tls.key": "server_key",
}  # fmt: skip
LOOK_S = 60.0
RETRY_S = 2.0


@dataclass(frozen=True)
class Places:
    """Where certificates are kept, who trusts them, and what the server is called."""

    namespace: str
    secret: str
    configuration: str  # the name of both webhook configurations
    names: tuple[str, ...]


class Publisher:
    """One of several replicas that keep the same Secret; whoever writes second reads again.

    `use` is called with certificates that a server is to show: the API server trusts them.
    """

    def __init__(
        self,
        api: Api,
        places: Places,
        use: Callable[[Certificates], None],
        report: Callable[..., None],
        *,
        lives: Lives | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self._api = api
        self._places = places
        self._use = use
        self._report = report
        self._lives = lives or Lives()
        self._look_s = look_s
        self.problem = "its certificates are not published yet"
        """Why the API server may not trust this server; empty: it does."""

    async def run(self) -> None:
        """Looks again and again until cancelled."""
        while True:
            wait_s = await self._looked()
            await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - no secret

    async def _looked(self) -> float:
        """Looks; seconds until the next time."""
        try:
            await self.look()
        except ApiError as error:
            if error.status != 409:  # another replica was quicker
                self._report("certificates-not-published", why=str(error))
            return RETRY_S
        return self._look_s

    async def look(self) -> None:
        """One look: what is due is done. Raises `ApiError`."""
        stored = await self._stored()
        current = _read(stored)
        if current is None:
            current = await self._made()
            await self._write(stored, current, "made")
        # Trusted first: of what is renewed below, nothing is shown before the next look.
        published = await self._publish(current.trusted)
        self._use(current)
        self.problem = "" if published else "its webhook configurations are not there"
        try:
            renewed = await asyncio.to_thread(
                current.renewed, self._places.names, self._lives, utc_now()
            )
        except ValueError as error:
            self._report("certificates-unreadable", why=str(error))
            renewed = await asyncio.to_thread(
                Certificates.make, self._places.names, self._lives, utc_now()
            )
        if renewed != current:
            await self._write(await self._stored(), renewed, "renewed", expected=current)
            await self._publish(renewed.trusted)
            if renewed.trusted == current.trusted:
                self._use(renewed)

    async def _made(self) -> Certificates:
        names = self._places.names
        return await asyncio.to_thread(Certificates.make, names, self._lives, utc_now())

    async def _stored(self) -> Object | None:
        try:
            return await self._api.get(SECRETS, self._places.secret, self._places.namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def _write(
        self,
        stored: Object | None,
        new: Certificates,
        how: str,
        expected: Certificates | None = None,
    ) -> None:
        data = {key: base64.b64encode(getattr(new, field)).decode() for key, field in KEYS.items()}
        if stored is None:
            body: Object = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": self._places.secret, "namespace": self._places.namespace},
                "type": "Opaque",
                "data": data,
            }
            await self._api.create(SECRETS, body, self._places.namespace)
        elif expected is None or _read(stored) == expected:
            await self._api.replace(SECRETS, {**stored, "data": data}, self._places.namespace)
        else:
            raise ApiError("the Secret was changed", "", "", 409, "Conflict")
        self._report(
            "certificates", how=how, secret=f"{self._places.namespace}/{self._places.secret}"
        )

    async def _publish(self, trusted: bytes) -> bool:
        """Writes what is trusted into both configurations; whether they are there."""
        bundle = base64.b64encode(trusted).decode()
        found = 0
        for kind in CONFIGURATIONS:
            try:
                one = await self._api.get(kind, self._places.configuration)
            except ApiError as error:
                if error.status != 404:
                    raise
                continue
            found += 1
            clients = [hook["clientConfig"] for hook in one.get("webhooks") or []]
            if any(client.get("caBundle") != bundle for client in clients):
                for client in clients:
                    client["caBundle"] = bundle
                await self._api.replace(kind, one)
        return found == len(CONFIGURATIONS)


def _read(stored: Object | None) -> Certificates | None:
    data = (stored or {}).get("data") or {}
    try:
        return Certificates(
            **{field: base64.b64decode(data[key], validate=True) for key, field in KEYS.items()}
        )
    except (KeyError, ValueError):
        return None
