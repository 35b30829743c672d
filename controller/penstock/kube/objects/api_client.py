"""Kubernetes API client: plain JSON objects, retries, and errors that say what to do.

The client library finds the server and authenticates to it. Objects stay plain JSON, because
building typed objects for ten thousand Pods takes longer than placing the Pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, quote

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME

from penstock.kube.objects.rate_limit import Pace
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from typing_extensions import Self

Object = dict[str, Any]
PAGE = 500  # objects in each page of a list
TIMEOUT_S = 30.0
MOST_CONNECTIONS = 64
# A watch that receives no data for this long has lost its server: bookmarks come every minute.
SILENCE_S = 150.0
# aiohttp's session waits for its pool, but not for a connection that was abandoned before its
# response began. TLS sends a close notification there, and the server has to return it.
CLOSING_S = 0.1
# Average and burst limits on the requests of one process per second, as usual for components built
# on client-go. `penstock kube place` binds Pods, so it gets the limits of a scheduler.
QPS, BURST = 50.0, 100
# A server that is too busy (429) says in its response after how many seconds to retry.
MOST_RETRIES, LONGEST_RETRY_S = 4, 5.0
CLOCK_EVERY_S = 60.0  # how often the server's clock is read
# Annotation of the bookmark that ends the initial list of a watch.
LIST_IS_WHOLE = "k8s.io/initial-events-end"
PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


@dataclass(frozen=True)
class Kind:
    """A kind of object as URL paths name it: `Kind("resource.k8s.io/v1", "resourceclaims")`."""

    group_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of all objects of this kind, of those in a namespace, or of one object."""
        root = "/api" if "/" not in self.group_version else "/apis"
        parts = [root, self.group_version]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


PODS = Kind("v1", "pods")
NODES = Kind("v1", "nodes", namespaced=False)
EVENTS = Kind("v1", "events")
CLAIMS = Kind("resource.k8s.io/v1", "resourceclaims")
SLICES = Kind("resource.k8s.io/v1", "resourceslices", namespaced=False)
LEASES = Kind("coordination.k8s.io/v1", "leases")


class ApiError(PenstockError):
    """The API server refused a request, or cannot be reached (then `status` is 0)."""

    def __init__(self, what: str, why: str, fix: str, status: int, code: str) -> None:
        super().__init__(what, why, fix, reason="unavailable" if status in {0, 429} else "invalid")
        self.status = status
        self.code = code  # the server's reason: NotFound, Conflict, AlreadyExists, Expired, …

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in {0, 408, 429} or self.status >= 500


class Api:
    """A connection to an API server. Every method raises `ApiError`."""

    def __init__(
        self, configuration: client.Configuration, *, qps: float = QPS, burst: int = BURST
    ) -> None:
        """Creates a connection for use in the current event loop.

        Args:
            configuration: The server and the credentials.
            qps: Average number of requests a second; requests beyond this limit wait.
            burst: Number of requests that may be sent at once.
        """
        configuration.connection_pool_maxsize = MOST_CONNECTIONS
        self._configuration = configuration
        self._rest = client.ApiClient(configuration).rest_client
        self._pace = Pace(qps, burst)
        self._ahead_s = 0.0  # the server's clock minus ours (monotonic)
        self._clock_read_s = -CLOCK_EVERY_S

    @classmethod
    async def connect(
        cls, kubeconfig: Path | None = None, *, qps: float = QPS, burst: int = BURST
    ) -> Self:
        """Connects to the cluster of `kubeconfig`.

        Without `kubeconfig`, a process in a Pod uses the Pod's own service account, and any other
        process uses $KUBECONFIG. `qps` and `burst` are those of the constructor.

        Raises:
            PenstockError: no cluster is configured.
        """
        configuration = client.Configuration()
        try:
            if kubeconfig is None and SERVICE_HOST_ENV_NAME in os.environ:
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                await config.load_kube_config(
                    str(kubeconfig) if kubeconfig else None, client_configuration=configuration
                )
            return cls(configuration, qps=qps, burst=burst)
        except Exception as error:  # for a malformed kubeconfig the library may raise anything
            raise PenstockError(
                "no Kubernetes cluster is configured", str(error),
                "name one with --kubeconfig or $KUBECONFIG, or run this in a Pod",
            ) from error  # fmt: skip

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return str(self._configuration.host)

    def now_s(self) -> float:
        """Seconds since 1970 (UTC) on the server's clock, accurate to about a second.

        Compare the server's timestamps with this time. It is taken from the server's responses;
        until the first one arrives, from this machine's clock.
        """
        if self._clock_read_s < 0:
            return time.time()
        return time.monotonic() + self._ahead_s

    async def get(
        self, kind: Kind, name: str, namespace: str = "", subresource: str = ""
    ) -> Object:
        """Reads one object."""
        return await self._ask("GET", kind.path(namespace, name, subresource))

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        *,
        fields: str = "",
        labels: str = "",
        fresh: bool = True,
    ) -> tuple[list[Object], str]:
        """Lists the objects that the selectors match, and returns them with the list's version.

        Without `fresh`, the list comes from the server's memory instead of its store. Such a list
        may be slightly out of date, or more so if one of several servers lags behind.
        """
        found: list[Object] = []
        query = {"fieldSelector": fields, "labelSelector": labels}
        # A server pages lists from its store, but sends lists from its memory in one piece.
        query |= {"limit": str(PAGE)} if fresh else {"resourceVersion": "0"}
        while True:
            answer = await self._ask("GET", kind.path(namespace), query=query)
            found += answer.get("items") or []
            more = answer["metadata"].get("continue")
            if not more:
                return found, answer["metadata"]["resourceVersion"]
            query["continue"] = more

    async def watch(
        self,
        kind: Kind,
        version: str,
        namespace: str = "",
        *,
        fields: str = "",
        labels: str = "",
        whole: bool = False,
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yields events after `version`: ("ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK", object).

        The server ends a watch every few minutes; continue from the version of the last object.

        With `whole`, all objects come first, each as "ADDED", and then a bookmark for which
        `is_list_whole` is true. If `version` is empty, these objects are as fresh as a list from
        the store; if it is "0", they are what the server has in memory. In neither case does the
        server read objects from its store. Servers without support for `whole` respond with status
        400 or 422.

        Raises:
            ApiError: the server does not respond, or it refuses (with status 410 if `version` is
                too old).
        """  # noqa: DOC501 - `_refusal` returns an ApiError
        query = {
            "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version,
            "fieldSelector": fields, "labelSelector": labels,
        }  # fmt: skip
        if whole:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        timeout = aiohttp.ClientTimeout(sock_connect=10, sock_read=SILENCE_S)
        path = kind.path(namespace)
        answer = await self._request("GET", path, query, timeout=timeout)
        try:
            async for line in _lines(answer.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _refusal("GET", path, event["object"])
                yield event["type"], event["object"]
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreachable(ValueError(f"malformed watch event: {error!r}")) from error
        finally:
            if answer.connection and answer.connection.transport:
                answer.connection.transport.abort()  # closing TLS would wait for the server
            answer.close()

    async def create(
        self, kind: Kind, body: Object, namespace: str = "", name: str = "", subresource: str = ""
    ) -> Object:
        """Creates an object, or posts to the `subresource` of an existing object."""
        return await self._ask("POST", kind.path(namespace, name, subresource), body)

    async def replace(
        self, kind: Kind, body: Object, namespace: str = "", subresource: str = ""
    ) -> Object:
        """Replaces an object; fails with status 409 if its version is no longer that of `body`."""
        path = kind.path(namespace, body["metadata"]["name"], subresource)
        return await self._ask("PUT", path, body)

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: object,
        namespace: str = "",
        subresource: str = "",
        *,
        way: Literal["merge", "json", "strategic", "apply"] = "merge",
        manager: str = "",
    ) -> Object:
        """Changes part of an object; for `apply`, `manager` names the field manager."""
        query = {"fieldManager": manager, "force": "true" if way == "apply" else ""}
        path = kind.path(namespace, name, subresource)
        return await self._ask("PATCH", path, body, query, {"Content-Type": PATCHES[way]})

    async def delete(self, kind: Kind, name: str, namespace: str = "", *, uid: str = "") -> None:
        """Deletes an object if it exists; with `uid`, only if it has that uid."""
        body: Object = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._ask("DELETE", kind.path(namespace, name), body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def ask_kubelet(self, node: str, path: str) -> Object:
        """Requests a path such as "stats/summary?a=b" from the kubelet of a node."""
        path, _, query = path.partition("?")
        return await self._ask(
            "GET", f"{NODES.path(name=node)}/proxy/{path}", query=dict(parse_qsl(query))
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._rest.close()
        await asyncio.sleep(CLOSING_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        answer = await self._request(method, path, query, body, headers, timeout=timeout)
        try:
            return json.loads(await answer.read())  # type: ignore[no-any-return] # as the server sent it
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            raise self._unreachable(error) from error

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        said = {**(headers or {}), "Accept": "application/json"}
        retries = 0
        while True:
            await self._pace.turn()
            token = await self._configuration.get_api_key_with_prefix("BearerToken")
            if token:
                said["Authorization"] = token
            try:
                answer: aiohttp.ClientResponse = await self._rest.request(
                    method,
                    self.server + path,
                    query_params={key: value for key, value in (query or {}).items() if value},
                    headers=said,
                    body=body,
                    _preload_content=False,
                    _request_timeout=timeout,
                )
                self._note_clock(answer)
                if 200 <= answer.status <= 299:
                    return answer
                text = await answer.read()
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                raise self._unreachable(error) from error
            # For an eviction, 429 means that a disruption budget forbids it: the caller decides
            # whether to wait.
            is_busy = answer.status == 429 and not path.endswith("/eviction")
            if not is_busy or retries == MOST_RETRIES:
                raise _refusal(method, path, _status_of(answer.status, text))
            retries += 1
            await asyncio.sleep(_retry_after_s(answer) * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    def _note_clock(self, answer: aiohttp.ClientResponse) -> None:
        now_s = time.monotonic()
        said = answer.headers.get("Date")
        if said is None or now_s - self._clock_read_s < CLOCK_EVERY_S:
            return
        with contextlib.suppress(ValueError):
            date = parsedate_to_datetime(said).replace(tzinfo=timezone.utc)
            # The header has whole seconds, so it is half a second behind on average.
            self._ahead_s, self._clock_read_s = date.timestamp() + 0.5 - now_s, now_s

    def _unreachable(self, error: Exception) -> ApiError:
        why = str(error) or type(error).__name__
        return ApiError(
            f"the API server at {self.server} does not respond", why,
            "check that it runs and that this machine can reach it; Penstock keeps trying", 0, "",
        )  # fmt: skip


async def find(api: Api, kind: Kind, name: str, namespace: str = "") -> Object | None:
    """Reads an object; None if it does not exist. Raises `ApiError` for other failures."""
    try:
        return await api.get(kind, name, namespace)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yields complete lines of any length, because an object may exceed the reader's buffer."""
    rest = bytearray()
    async for block in content.iter_any():
        rest += block
        *lines, last = rest.split(b"\n")
        rest = last
        for line in lines:
            if line:
                yield bytes(line)


def is_list_whole(event: str, one: Object) -> bool:
    """Whether an event of a watch with `whole` marks the end of the initial list."""
    annotations = (one.get("metadata") or {}).get("annotations") or {}
    return event == "BOOKMARK" and annotations.get(LIST_IS_WHOLE) == "true"


def _status_of(number: int, text: bytes) -> Object:
    status: Object = {"message": text.decode(errors="replace")[:500]}
    with contextlib.suppress(ValueError):
        told = json.loads(text)
        status = told if isinstance(told, dict) else status
    return {**status, "code": number}


def _retry_after_s(answer: aiohttp.ClientResponse) -> float:
    said = answer.headers.get("Retry-After", "")
    return min(LONGEST_RETRY_S, float(said)) if said.isdecimal() else 1.0


def _refusal(method: str, path: str, status: Object) -> ApiError:
    code = str(status.get("reason") or "")
    number = int(status.get("code") or 0)
    fixes = {
        401: "check whether the token or certificate is still valid",
        403: "check the roles that the chart installs (kubectl auth can-i)",
        404: "check the name, and whether the object was deleted",
        409: "try again: another client changed the object at the same time",
    }
    return ApiError(
        f"{method} {path} was refused ({number})", str(status.get("message") or code),
        fixes.get(number, "see the API server's log"), number, code,
    )  # fmt: skip
