"""Publishes the webhook's certificates in a Secret, and completes its webhook configurations.

The configurations contain the certificate authority that the API server trusts, a secret word in
the paths, which only the API server knows, and a condition that skips claims for other drivers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import random
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from penstock.kube.objects.api_client import Api, ApiError, Kind, Object, find
from penstock.kube.webhook.certificates import Certificates, Lives, utc_now
from penstock.kube.webhook.webhook_server import MUTATE, VALIDATE

if TYPE_CHECKING:
    from collections.abc import Callable

SECRETS = Kind("v1", "secrets")
CONFIGURATIONS = {  # each with the first part of its paths
    Kind("admissionregistration.k8s.io/v1", plural, namespaced=False): act
    for plural, act in (
        ("mutatingwebhookconfigurations", MUTATE), ("validatingwebhookconfigurations", VALIDATE),
    )
}  # fmt: skip
KEYS = {
    "ca.crt": "trusted", "ca.key": "authority_key", "tls.crt": "server", "tls.key": "server_key",
}  # fmt: skip
LEAST_WORD = 64  # characters: 256 bits
WORD = "word"  # key of the Secret: the last part of the paths
CLAIMS_HOOK = "claims.penstock.io"
CONDITION = "not-of-other-drivers-alone"
MOST_NAMES = 100  # device classes in the condition's expression, whose length is limited
LOOK_S = 10.0
RETRY_S = 2.0


@dataclass(frozen=True)
class Places:
    """The Secret for certificates, the webhook configurations, and the server's names."""

    namespace: str
    secret: str
    configuration: str  # the name of both webhook configurations
    names: tuple[str, ...]


class Publisher:
    """One of several replicas that maintain the same Secret, and reread it after a conflict.

    Calls `use` with certificates for the server once the API server trusts them.
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
        others: Callable[[], set[str] | None] = lambda: None,
    ) -> None:
        """`others` returns the device classes of other drivers, or None if not known yet."""
        self._api = api
        self._places = places
        self._use = use
        self._report = report
        self._lives = lives or Lives()
        self._look_s = look_s
        self._others = others
        self._due = asyncio.Event()
        self.word = ""
        """The last part of the paths that the API server requests; empty if not known yet."""
        self.problem = "its certificates are not published yet"
        """Why the API server may not trust this server yet; empty if it does."""

    def wake(self) -> None:
        """Triggers a check at once."""
        self._due.set()

    async def run(self) -> None:
        """Checks periodically until cancelled."""
        while True:
            self._due.clear()
            wait_s = await self._looked() * random.uniform(0.5, 1)  # noqa: S311 - no secret
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._due.wait(), wait_s)

    async def _looked(self) -> float:
        """Checks once; returns the seconds until the next check."""
        try:
            await self.look()
        except ApiError as error:
            if error.status != 409:  # 409: another replica was quicker
                self._report("certificates-not-published", why=str(error))
            return RETRY_S
        return self._look_s

    async def look(self) -> None:
        """Checks once, and creates, renews or publishes what is due. Raises `ApiError`."""
        stored = await self._stored()
        current = _read(stored)
        if current is None:
            current = await self._made()
            await self._write(stored, current, "made")
            stored = await self._stored()
        self.word = await self._worded(stored)
        # The authority is published before its certificates are used. So certificates signed by a
        # new authority are not used before the next check.
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

    async def _worded(self, stored: Object | None) -> str:
        """The secret word, which is created if the Secret has none."""
        data = (stored or {}).get("data") or {}
        with contextlib.suppress(ValueError):
            found = base64.b64decode(data.get(WORD) or "", validate=True).decode("ascii")
            if len(found) >= LEAST_WORD and found.isalnum():
                return found
        made = secrets.token_hex(LEAST_WORD // 2)
        data = {**data, WORD: base64.b64encode(made.encode()).decode()}
        await self._api.replace(SECRETS, {**(stored or {}), "data": data}, self._places.namespace)
        return made

    async def _made(self) -> Certificates:
        names = self._places.names
        return await asyncio.to_thread(Certificates.make, names, self._lives, utc_now())

    async def _stored(self) -> Object | None:
        return await find(self._api, SECRETS, self._places.secret, self._places.namespace)

    async def _write(
        self,
        stored: Object | None,
        new: Certificates,
        how: str,
        expected: Certificates | None = None,
    ) -> None:
        data = {key: base64.b64encode(getattr(new, field)).decode() for key, field in KEYS.items()}
        if word := ((stored or {}).get("data") or {}).get(WORD):
            data[WORD] = word
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
        """Completes both webhook configurations; returns whether both exist."""
        bundle = base64.b64encode(trusted).decode()
        found = 0
        for kind, act in CONFIGURATIONS.items():
            one = await find(self._api, kind, self._places.configuration)
            if one is None:
                continue
            found += 1
            hooks = one.get("webhooks") or []
            before = copy.deepcopy(hooks)
            for hook in hooks:
                self._complete(hook, bundle, f"/{act}/{self.word}")
            if hooks != before:
                await self._api.replace(kind, one)
        return found == len(CONFIGURATIONS)

    def _complete(self, hook: Object, bundle: str, path: str) -> None:
        """Sets the authority, the path and the conditions of a hook."""
        client = hook["clientConfig"]
        client["caBundle"] = bundle
        if "service" in client:
            client["service"]["path"] = path
        else:
            client["url"] = urlunsplit(urlsplit(client["url"])._replace(path=path))
        others = self._others()
        if hook["name"] == CLAIMS_HOOK and others is not None:
            kept = [one for one in hook.get("matchConditions") or [] if one["name"] != CONDITION]
            if others:
                kept.append({"name": CONDITION, "expression": _not_of(others)})
            hook["matchConditions"] = kept


def _not_of(classes: set[str]) -> str:
    """A CEL expression that is true if a claim or template also names a class other than these."""
    names = json.dumps(sorted(classes)[:MOST_NAMES])  # a JSON list of strings is also valid CEL
    return (
        "(has(object.spec.spec) ? object.spec.spec : object.spec).?devices.?requests.orValue([])"
        f".exists(r, has(r.exactly) ? !(r.exactly.deviceClassName in {names})"
        f" : !has(r.firstAvailable)"
        f" || r.firstAvailable.exists(f, !(f.deviceClassName in {names})))"
    )


def _read(stored: Object | None) -> Certificates | None:
    data = (stored or {}).get("data") or {}
    try:
        return Certificates(
            **{field: base64.b64decode(data[key], validate=True) for key, field in KEYS.items()}
        )
    except (KeyError, ValueError):
        return None
