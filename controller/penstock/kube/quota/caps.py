"""Namespace caps: enforces a QuotaCap's `spec.hard` under concurrent admissions.

A QuotaCap's status is a ledger. Before a webhook admits a claim or a Pod, it writes the object's
quantities into `pending` under the object's uid. The write succeeds only if the cap still has the
version that the webhook read, so of two concurrent writers one has to read again. The controller
moves the objects that it sees in the API into `used`.

If the share of a Pod is to grow, only the difference is written. Its key consists of the Pod's uid,
the version that the growth replaces, and a hash of the requested sizes. A newer version of the Pod
either contains the growth or rules it out.

So at any time each object counts once, and the sum of `pending` and `used` is never below the
quantities of existing objects. (The API server counts extended resources against a ResourceQuota in
the same way, but it does not count the capacity of claims.)
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.kube.objects.api_client import CLAIMS, PODS, ApiError, Kind
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.device_amounts import NOTHING, Amounts, of_claim, of_pod, total
from penstock.kube.objects.device_class import DeviceClass, read_class
from penstock.kube.objects.names import RESIZE
from penstock.model import (
    PenstockError,
    QuantityError,
    format_cores,
    human_memory,
    listing,
    parse_memory,
)
from penstock.policy.schema import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kube.objects.api_client import Api, Object

CAPS = Kind(API_VERSION, "quotacaps")
CLASSES = Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False)
NAME = "default"  # a namespace has one cap
OVER = "/"  # separates uid, replaced version and requested size in the key of a growth entry
MOST_TRIES = 30  # attempts to write a ledger that others write as well
# An admitted object that never appears was refused after our review. The API server gives up on a
# request after a minute, so an object that has not appeared after this time never will.
UNSEEN_S = 120.0


@dataclass(frozen=True)
class Cap:
    """A QuotaCap. A quantity that is None is not capped."""

    namespace: str
    version: str
    generation: int
    vgpus: int | None
    memory_bytes: int | None
    cores_permille: int | None
    used: Amounts | None  # None if not counted yet
    pending: Mapping[str, Amounts]
    counted: Mapping[str, str]
    whole: Object = field(compare=False)

    def refusal(self, asked: Amounts, held: Amounts) -> str | None:
        """Why `asked` does not fit in addition to `held`; None if it fits."""
        parts: list[str] = []
        unsaid: list[str] = []
        for name, hard, wants, has, said in (
            ("vgpus", self.vgpus, asked.vgpus, held.vgpus, str),
            ("memory", self.memory_bytes, asked.memory_bytes, held.memory_bytes, human_memory),
            ("cores", self.cores_permille, asked.cores_permille, held.cores_permille, _percent),
        ):
            if hard is None:
                continue
            if wants is None:
                unsaid.append(name)
            elif wants and (has or 0) + wants > hard:
                parts.append(
                    f"{name}: {said(wants)} requested, {said(has or 0)} of {said(hard)} taken"
                )
        where = f"QuotaCap {self.namespace}/{NAME}"
        if unsaid and asked.vgpus is None:
            return (
                f"{where} caps {listing(unsaid)}, and allocationMode All takes as many devices as "
                "the node has: request a count instead"
            )
        if unsaid:
            names = " and ".join(unsaid)
            return f"{where} caps {names}, so requests must state an amount: add a quantity"
        if parts:
            return f"{where} would be exceeded ({'; '.join(parts)}): request less, or delete others"
        return None


def read_cap(one: Object) -> Cap:
    """Reads a QuotaCap object."""
    hard = one["spec"].get("hard") or {}
    status = one.get("status") or {}
    used = status.get("used")
    return Cap(
        one["metadata"].get("namespace", ""),
        one["metadata"]["resourceVersion"],
        one["metadata"].get("generation", 0),
        hard.get("vgpus"),
        _memory(hard.get("memory")),
        _cores(hard.get("cores")),
        None if used is None else _amounts(used),
        {uid: _amounts(plain) for uid, plain in (status.get("pending") or {}).items()},
        status.get("counted") or {},
        one,
    )


@dataclass
class _Asked:
    uid: str
    amounts: Amounts
    dry: bool
    answer: asyncio.Future[str | None]


class Caps:
    """The webhook's side: checks requests and reserves their quantities while `run` runs."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._caps = Cache(api, CAPS, read_cap)
        self.classes: Cache[DeviceClass] = Cache(api, CLASSES, read_class)
        self._waiting: dict[str, list[_Asked]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follows caps and device classes until cancelled."""
        await asyncio.gather(self._caps.run(), self.classes.run())

    @property
    def is_ready(self) -> bool:
        """Whether it can check requests."""
        return all(one.is_ready or one.is_unserved for one in (self._caps, self.classes))

    def unready(self) -> str:
        """Why it cannot check requests yet; empty if it can."""
        return "" if self.is_ready else "caps are not known yet"

    def our_classes(self) -> set[str]:
        """Names of the device classes that allocate our devices, or could allocate them."""
        return {name for (_, name), one in self.classes.objects.items() if one.whose != "theirs"}

    async def further(self, request: Object) -> list[str]:
        """Checks the request of an AdmissionReview and reserves its quantities.

        Returns the reasons against the request. Only validating webhooks reserve, because mutating
        webhooks see an object before it has a uid.
        """
        one, resource = request["object"], request["resource"]["resource"]
        if request.get("operation") == "UPDATE" and resource == "pods":
            return await self._growth(request["oldObject"], one, request)
        if request.get("operation") != "CREATE" or request.get("subResource"):
            return []
        uid = one["metadata"].get("uid")
        if not uid or resource not in {"pods", "resourceclaims"}:
            return []
        asked = of_pod(one) if resource == "pods" else of_claim(one, self.our_classes())
        dry_run = bool(request.get("dryRun"))
        why = await self.check(request["namespace"], uid, asked, dry_run=dry_run)
        return [why] if why else []

    async def _growth(self, old: Object, new: Object, request: Object) -> list[str]:
        """Checks a Pod whose share is to grow, and reserves the quantities not counted yet."""
        was, now = of_pod(old), of_pod(new)
        more = Amounts(0, _more(was.memory_bytes, now.memory_bytes), _more(
            was.cores_permille, now.cores_permille
        ))  # fmt: skip
        metadata = old["metadata"]
        version = metadata.get("resourceVersion")
        if more == NOTHING or not version:
            return []
        wish = (new["metadata"].get("annotations") or {}).get(RESIZE, "")
        key = OVER.join((metadata["uid"], version, hashlib.sha256(wish.encode()).hexdigest()[:8]))
        dry_run = bool(request.get("dryRun"))
        why = await self.check(request["namespace"], key, more, dry_run=dry_run)
        return [why] if why else []

    async def check(
        self, namespace: str, uid: str, asked: Amounts, *, dry_run: bool = False
    ) -> str | None:
        """Reserves the quantities that an object of the namespace requests.

        Returns the reason for a refusal, or None. `asked` comes from `of_pod` for a Pod, and from
        `of_claim` for a claim. A repeated check of the same uid is the same reservation.

        Raises:
            PenstockError: the outcome is unknown, so the caller must not admit the object.
        """
        if not self.is_ready:
            raise PenstockError(
                "caps are not known yet", "the API server has not sent their list",
                "try the same request again in a moment",
            )  # fmt: skip
        if asked == NOTHING or (namespace, NAME) not in self._caps.objects:
            return None
        one = _Asked(uid, asked, dry_run, asyncio.get_running_loop().create_future())
        if namespace in self._waiting:  # the task that writes for the namespace includes it
            self._waiting[namespace].append(one)
        else:
            self._waiting[namespace] = [one]
            task = asyncio.create_task(self._work(namespace))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await one.answer

    async def _work(self, namespace: str) -> None:
        """Settles all waiting requests in one write, and repeats this until none is waiting."""
        while batch := self._waiting[namespace]:
            self._waiting[namespace] = []
            try:
                answers = await self._settle(namespace, batch)
            except Exception as error:  # noqa: BLE001 - the waiting callers get any error
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            for one, answer in zip(batch, answers, strict=True):
                if not one.answer.done():
                    one.answer.set_result(answer)
        del self._waiting[namespace]

    async def _settle(self, namespace: str, batch: list[_Asked]) -> list[str | None]:
        for attempt in range(MOST_TRIES):
            try:
                cap = read_cap(await self._api.get(CAPS, NAME, namespace))
            except ApiError as error:
                if error.status == 404:
                    return [None] * len(batch)
                raise
            if cap.used is None:
                cap = await counted(self._api, cap, self.our_classes())
            answers, pending = _answers(cap, batch)
            if pending == cap.pending:
                return answers
            try:
                await self._api.replace(CAPS, _with(cap, pending), namespace, "status")
            except ApiError as error:
                if error.status != 409:
                    raise
                # Another writer was first. The random wait keeps the two from colliding again.
                await asyncio.sleep(random.uniform(0, 0.01 * (attempt + 1)))  # noqa: S311
                continue
            return answers
        raise PenstockError(
            f"the cap of namespace {namespace} could not be written",
            f"other writers changed it during each of {MOST_TRIES} attempts", "try again",
        )  # fmt: skip


def _answers(cap: Cap, batch: list[_Asked]) -> tuple[list[str | None], dict[str, Amounts]]:
    """The answer to each request in turn, and the pending entries afterwards.

    This function never lowers an entry, because its first value may belong to an object that is
    stored by now. Only the controller, which sees the stored objects, removes entries.
    """
    pending = dict(cap.pending)
    answers = []
    for one in batch:
        earlier = [one.uid, *_same_wish(one.uid, pending)]
        others = [amounts for uid, amounts in pending.items() if uid not in earlier]
        answer = cap.refusal(one.amounts, total([cap.used or NOTHING, *others]))
        answers.append(answer)
        if answer is not None or one.dry:
            continue
        entry = total([one.amounts])
        for uid in earlier:
            entry = entry.most(pending.pop(uid, NOTHING))
        pending[one.uid] = entry
    return answers, pending


def _same_wish(asked: str, pending: Iterable[str]) -> list[str]:
    """Keys of the same growth of the Pod, which replace an older version of it.

    When another client changes the Pod at the same time, the API server sends a new review. If the
    growth had happened, the Pod would have the requested size, and there would be nothing to
    reserve.
    """
    uid, _, over = asked.partition(OVER)
    wish = over.partition(OVER)[2]
    if not wish:
        return []
    return [
        key for key in pending if key.startswith(f"{uid}{OVER}") and key.endswith(f"{OVER}{wish}")
    ]


async def counted(api: Api, cap: Cap, ours: Iterable[str]) -> Cap:
    """Counts the quantities that a namespace holds now, for a new cap."""
    classes = set(ours)
    try:
        claims, claims_version = await api.list(CLAIMS, cap.namespace)
    except ApiError as error:
        if error.status != 404:  # a Kubernetes release without claims responds with 404
            raise
        claims, claims_version = [], ""
    pods, pods_version = await api.list(PODS, cap.namespace)
    held = [*(of_claim(one, classes) for one in claims), *map(of_pod, pods)]
    versions = {"claims": claims_version, "pods": pods_version}
    return _replaced(cap, total(held), {}, versions)


class Counter:
    """The controller's side: moves objects seen in the API from `pending` to `used`."""

    def __init__(self) -> None:
        self._first_seen_s: dict[str, float] = {}  # by pending entry, monotonic
        self._ended: dict[str, float] = {}  # by uid of a removed object: when that was seen

    def ended(self, uid: str) -> None:
        """Records that an object was removed, so that its pending entry need not wait longer."""
        self._ended[uid] = time.monotonic()

    def forget(self) -> None:
        """Drops records that are too old to matter. Call this periodically."""
        since_s = time.monotonic() - 2 * UNSEEN_S
        self._ended = {uid: at for uid, at in self._ended.items() if at > since_s}
        self._first_seen_s = {uid: at for uid, at in self._first_seen_s.items() if at > since_s}

    def fold(
        self,
        cap: Cap,
        held: Mapping[str, Amounts],
        versions: Mapping[str, str],
        seen: Mapping[str, str] | None = None,
    ) -> Object | None:
        """The cap with its new status; None if its status does not change.

        `held` contains the quantities that each object of the namespace holds, by uid, as of these
        `versions` of claims and Pods. If these are older than the versions counted last, nothing is
        written. `seen` contains the versions of the namespace's Pods, by uid.
        """
        if any(_older(versions[name], cap.counted.get(name)) for name in versions):
            return None
        now_s = time.monotonic()
        pending = {}
        for key, amounts in cap.pending.items():
            uid, _, over = key.partition(OVER)
            over = over.partition(OVER)[0]
            first_s = self._first_seen_s.setdefault(key, now_s)
            is_counted = _older(over, (seen or {}).get(uid)) if over else uid in held
            if is_counted or uid in self._ended or now_s - first_s > UNSEEN_S:
                self._first_seen_s.pop(key, None)
            else:
                pending[key] = amounts
        used = total(held.values())
        observed = (cap.whole.get("status") or {}).get("observedGeneration")
        if (used, pending, observed) == (cap.used, cap.pending, cap.generation):
            return None
        return _with(_replaced(cap, used, pending, versions), pending)


def _more(was: int | None, now: int | None) -> int:
    """The increase of a quantity, which is always known for a placed Pod."""
    return max(0, (now or 0) - (was or 0))


def _replaced(
    cap: Cap, used: Amounts, pending: Mapping[str, Amounts], versions: Mapping[str, str]
) -> Cap:
    return Cap(
        cap.namespace, cap.version, cap.generation, cap.vgpus, cap.memory_bytes,
        cap.cores_permille, used, pending, versions, cap.whole,
    )  # fmt: skip


def _with(cap: Cap, pending: Mapping[str, Amounts]) -> Object:
    used = cap.used or NOTHING
    taken = total([used, *pending.values()])
    status = {
        "observedGeneration": cap.generation,
        "used": _plain(used),
        "usedInWords": {
            "vgpus": str(taken.vgpus or 0),
            "memory": human_memory(taken.memory_bytes or 0),
            "cores": f"{format_cores(taken.cores_permille or 0)}%",
        },
        "pending": {uid: _plain(one) for uid, one in pending.items()},
        "counted": dict(cap.counted),
    }
    return {**cap.whole, "status": status}


def _plain(one: Amounts) -> dict[str, int]:
    return {
        "vgpus": one.vgpus or 0,
        "memoryBytes": one.memory_bytes or 0,
        "coresPermille": one.cores_permille or 0,
    }


def _amounts(plain: Mapping[str, Any]) -> Amounts:
    return Amounts(
        plain.get("vgpus", 0), plain.get("memoryBytes", 0), plain.get("coresPermille", 0)
    )


def _older(one: str, other: str | None) -> bool:
    """Whether a resourceVersion is older than another, as these numbers only increase."""
    if other is None or not (one.isdecimal() and other.isdecimal()):
        return False
    return int(one) < int(other)


def _memory(value: object) -> int | None:
    """Bytes of a cap's memory; 0 if malformed, so that an unclear cap admits nothing."""
    try:
        return None if value is None else 0 if value in {0, "0"} else parse_memory(value)
    except QuantityError:
        return 0


def _cores(value: object) -> int | None:
    """Permille of a cap's cores, from percent of a device; above 100 % means several devices."""
    if value is None:
        return None
    try:
        return round(float(str(value).removesuffix("%")) * 10)
    except (ValueError, OverflowError):
        return 0


def _percent(permille: int) -> str:
    return f"{permille / 10:g}%"
