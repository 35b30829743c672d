"""Object cache: all objects of a kind, kept up to date by list and watch."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.kube.objects.api_client import Api, ApiError, Kind, Object, is_list_whole

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Key = tuple[str, str]  # namespace ("" where there is none), name
LONGEST_WAIT_S = 30.0
SETTLED_S = 60.0  # a watch that lasted this long did not fail at once
# Status codes of a server that cannot begin a watch with a list, because it does not support this
# or its memory does not catch up with its store.
NO_STREAM = frozenset({400, 422, 504})


class Cache(Generic[T]):
    """Objects by namespace and name, each reduced by `read` to the parts that are needed.

    `read` returns None for irrelevant objects. `run` keeps the cache up to date until cancelled,
    even when watches end, versions are too old, or servers restart. While the server does not
    respond, the cache keeps its last objects, and `age_s` returns how old they are.

    If `read` raises, the cache calls `report` and keeps the object as it was last read, or leaves
    it out if it was never read. Otherwise a user who may write one object could stop a process that
    serves everyone.
    """

    def __init__(
        self,
        api: Api,
        kind: Kind,
        read: Callable[[Object], T | None],
        *,
        namespace: str = "",
        fields: str = "",
        labels: str = "",
        fresh: bool = False,
        report: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        """Creates an empty cache; `run` fills it.

        With `fresh`, lists come from the server's store, otherwise from its memory. `report` gets
        the events "problem" and "problem over", with the fields `part` and `problem`.
        """
        self.objects: dict[Key, T] = {}
        self.changed: list[Callable[[Key, T | None, T | None], None]] = []
        """Functions called with a key and its old and new object, of which either may be None for
        an object that does not exist. They must not raise.
        """
        self.problem: ApiError | None = None
        """The reason why the server does not respond at the moment, or None if it responds."""
        self._api = api
        self._kind = kind
        self._read = read
        self._where: dict[str, Any] = {"namespace": namespace, "fields": fields, "labels": labels}
        self._fresh = fresh
        self._report = report
        self._unread: dict[Key, str] = {}  # objects that cannot be read, and why
        self._streams = True  # whether the server can begin a watch with a list
        self._version = ""
        self._ready = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    def renew(self) -> None:
        """Lists all objects again. Until then the cache is not ready, but keeps its old objects."""
        self._ready.clear()
        self._version = ""
        if self._following is not None:
            self._following.cancel()

    async def ready(self) -> None:
        """Returns once all objects have been listed."""
        await self._ready.wait()

    @property
    def is_ready(self) -> bool:
        """Whether all objects have been listed once."""
        return self._ready.is_set()

    @property
    def is_unserved(self) -> bool:
        """Whether the server does not serve this kind, because it is too old or lacks the CRD."""
        return not self.is_ready and self.problem is not None and self.problem.status == 404

    @property
    def is_listing(self) -> bool:
        """Whether objects come from a list rather than from events, so their age is unknown."""
        return not self._version

    @property
    def version(self) -> str:
        """The server's version of the objects; empty before they are listed."""
        return self._version

    async def run(self) -> None:
        """Follows the server until it is cancelled."""
        wait_s = 0.0
        while True:
            begun_s = time.monotonic()
            self._following = asyncio.create_task(self._follow())
            try:
                await asyncio.wait([self._following])
            finally:
                self._following.cancel()
            if self._following.cancelled():  # by `renew`
                continue
            try:
                self._following.result()
                wait_s = 0.1  # watches usually last minutes; spare a server that ends them at once
            except ApiError as error:
                if error.status == 410:  # the server no longer has that version
                    self._version = ""
                elif self.problem is None:
                    self.problem = error
                long = time.monotonic() - begun_s > SETTLED_S
                wait_s = 0.1 if long else min(LONGEST_WAIT_S, max(0.1, wait_s * 2))
            # The wait is random, so that the many caches that lost a server do not all reconnect
            # at once.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    async def _follow(self) -> None:
        if self._version:
            await self._watch(self._version, whole=False)
        elif self._streams:
            await self._stream()
        else:
            await self._list()
            await self._watch(self._version, whole=False)

    async def _stream(self) -> None:
        """Lists through the beginning of a watch, which is cheaper for the server and for us."""
        try:
            await self._watch("" if self._fresh else "0", whole=True)
        except ApiError as error:
            if self._version or error.status not in NO_STREAM:
                raise
            self._streams = False
            await self._follow()

    async def _list(self) -> None:
        found, version = await self._api.list(self._kind, **self._where, fresh=self._fresh)
        for one in found:
            self._take(key_of(one), self._reduced(one))
        self._have_all({key_of(one) for one in found}, version)

    def _have_all(self, listed: set[Key], version: str) -> None:
        for key in set(self.objects) - listed:
            self._gone(key)
        self._version = version
        self.problem = None
        self._ready.set()

    async def _watch(self, version: str, *, whole: bool) -> None:
        """Follows a watch.

        With `whole`, the watch begins with all objects. After them, objects in the cache that were
        not listed are removed.
        """
        listed: set[Key] = set()
        async for event, one in self._api.watch(self._kind, version, **self._where, whole=whole):
            if is_list_whole(event, one):
                self._have_all(listed, one["metadata"]["resourceVersion"])
                whole = False
                continue
            if whole:
                listed.add(key_of(one))
            else:
                self._version = one["metadata"]["resourceVersion"]
                self.problem = None
            if event == "DELETED":
                self._gone(key_of(one))
            elif event != "BOOKMARK":
                self._take(key_of(one), self._reduced(one))

    def _reduced(self, one: Object) -> T | None:
        key = key_of(one)
        try:
            found = self._read(one)
        except Exception as error:  # noqa: BLE001 - a user's object may cause any error
            self._note(key, f"cannot be read: {type(error).__name__}: {error}")
            return self.objects.get(key)
        self._note(key, "")
        return found

    def _note(self, key: Key, problem: str) -> None:
        """Reports a problem with an object when it begins, and when it is over."""
        if self._unread.get(key, "") == problem:
            return
        if problem:
            self._unread[key] = problem
        else:
            del self._unread[key]
        part = f"{self._kind.plural} {'/'.join(part for part in key if part)}"
        self._report("problem" if problem else "problem over", part=part, problem=problem)

    def _gone(self, key: Key) -> None:
        self._note(key, "")
        self._take(key, None)

    def _take(self, key: Key, new: T | None) -> None:
        old = self.objects.get(key)
        if new is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = new
        if old != new:
            for tell in self.changed:
                tell(key, old, new)


def key_of(one: Object) -> Key:
    """The cache key of an object."""
    metadata = one["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
