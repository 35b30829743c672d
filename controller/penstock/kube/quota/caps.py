"""Caps of namespaces: never more than `spec.hard`, however many ask at once.

A QuotaCap's status is a ledger. Who admits a claim or a Pod first writes its amounts into
`pending`, under its uid, over the version of the cap that it has read: of two that write at once
one reads again. The controller moves what it sees in the API into `used`. A Pod whose share is to
grow is written with the difference alone, under its uid, the version that the growth replaces and
what is wished: any newer version of the Pod has it, or rules it out. So each object counts
once at any time, and the sum of both is never below what exists. (The API server counts extended
resources against a ResourceQuota in the same way; capacity of claims it does not count.)
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
from penstock.kube.objects.device_amounts import (
    NOTHING,
    Amounts,
    of_claim,
    of_pod,
    total,
)
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
NAME = "default"  # a namespace has one
OVER = "/"  # in a ledger: growth of the object of that uid, over that version, to that wish
MOST_TRIES = 30  # to write a ledger that others write as well
# An admitted object that is never seen was refused after us. The API server gives up on a request
# after a minute; what comes later than this is no longer on its way.
UNSEEN_S = 120.0


@dataclass(frozen=True)
class Cap:
    """A QuotaCap. None: not capped."""

    namespace: str
    version: str
    generation: int
    vgpus: int | None
    memory_bytes: int | None
    cores_permille: int | None
    used: Amounts | None  # None: not counted yet
    pending: Mapping[str, Amounts]
    counted: Mapping[str, str]
    whole: Object = field(compare=False)

    def refusal(self, asked: Amounts, held: Amounts) -> str | None:
        """Why `asked` cannot be had beside `held`; None: it can."""
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
                    f"{name}: {said(wants)} asked for, {said(has or 0)} of {said(hard)} taken"
                )
        where = f"QuotaCap {self.namespace}/{NAME}"
        if unsaid and asked.vgpus is None:
            return (
                f"{where} caps {listing(unsaid)}, and allocationMode All takes as many devices as "
                "the node has: ask for a count"
            )
        if unsaid:
            return f"{where} caps {' and '.join(unsaid)}, so that has to be said: ask for an amount"
        if parts:
            return f"{where} would be exceeded ({'; '.join(parts)}): ask for less, or end others"
        return None


def read_cap(one: Object) -> Cap:
    """As an API server has it."""
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
    """For whoever admits: asks the ledger. `run` beside it until it is cancelled."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._caps = Cache(api, CAPS, read_cap)
        self.classes: Cache[DeviceClass] = Cache(api, CLASSES, read_class)
        self._waiting: dict[str, list[_Asked]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follows caps and device classes."""
        await asyncio.gather(self._caps.run(), self.classes.run())

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked."""
        return all(one.is_ready or one.is_unserved for one in (self._caps, self.classes))

    def unready(self) -> str:
        """Why it cannot; empty: it can."""
        return "" if self.is_ready else "caps are not known yet"

    def our_classes(self) -> set[str]:
        """Names of the device classes whose devices are ours, or may be."""
        return {name for (_, name), one in self.classes.objects.items() if one.whose != "theirs"}

    async def further(self, request: Object) -> list[str]:
        """The same for an AdmissionReview's request: reasons against it. May reserve.

        Mutating webhooks see an object before it has a uid: only validating ones are counted.
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
        """Of a Pod whose share is to grow: what is more than it counts for already."""
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
        """Reserves what the object `uid` of the namespace asks for; else the reason why not.

        Of a Pod that is `of_pod`, of a claim `of_claim`. Asked again for the same uid it is the
        same reservation. Raises `PenstockError` when nobody can say: then nothing is admitted.
        """
        if not self.is_ready:
            raise PenstockError(
                "caps are not known yet", "their list has not come from the API server",
                "the same request will do in a moment",
            )  # fmt: skip
        if asked == NOTHING or (namespace, NAME) not in self._caps.objects:
            return None
        one = _Asked(uid, asked, dry_run, asyncio.get_running_loop().create_future())
        if namespace in self._waiting:  # whoever writes for the namespace takes it along
            self._waiting[namespace].append(one)
        else:
            self._waiting[namespace] = [one]
            task = asyncio.create_task(self._work(namespace))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await one.answer

    async def _work(self, namespace: str) -> None:
        """All that wait in one write, and again, until nobody waits."""
        while batch := self._waiting[namespace]:
            self._waiting[namespace] = []
            try:
                answers = await self._settle(namespace, batch)
            except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
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
                # Somebody else wrote it: not in step with him again.
                await asyncio.sleep(random.uniform(0, 0.01 * (attempt + 1)))  # noqa: S311
                continue
            return answers
        raise PenstockError(
            f"the cap of namespace {namespace} could not be written",
            f"others wrote it at the same time, {MOST_TRIES} times", "try it again",
        )  # fmt: skip


def _answers(cap: Cap, batch: list[_Asked]) -> tuple[list[str | None], dict[str, Amounts]]:
    """Of each that asks, in turn; and what is pending then.

    An entry is never lowered here: the first word may be that of an object which is stored by now.
    Only the controller, which sees what is stored, takes entries away.
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
    """Growth of that Pod to the same amounts, over an older version of it.

    The API server asks again when somebody else changed the Pod meanwhile; had the change happened
    the Pod would have the wish, and nothing more would be asked for.
    """
    uid, _, over = asked.partition(OVER)
    wish = over.partition(OVER)[2]
    if not wish:
        return []
    return [
        key for key in pending if key.startswith(f"{uid}{OVER}") and key.endswith(f"{OVER}{wish}")
    ]


async def counted(api: Api, cap: Cap, ours: Iterable[str]) -> Cap:
    """A cap that nobody has counted for yet, with what its namespace holds now."""
    classes = set(ours)
    try:
        claims, claims_version = await api.list(CLAIMS, cap.namespace)
    except ApiError as error:
        if error.status != 404:  # a release without claims
            raise
        claims, claims_version = [], ""
    pods, pods_version = await api.list(PODS, cap.namespace)
    held = [*(of_claim(one, classes) for one in claims), *map(of_pod, pods)]
    versions = {"claims": claims_version, "pods": pods_version}
    return _replaced(cap, total(held), {}, versions)


class Counter:
    """The controller's side: what is seen in the API becomes `used`."""

    def __init__(self) -> None:
        self._first_seen_s: dict[str, float] = {}  # monotonic, of what is pending
        self._ended: dict[str, float] = {}  # when objects were seen to go, monotonic

    def ended(self, uid: str) -> None:
        """An object was removed: should it be pending still, it is not waited for."""
        self._ended[uid] = time.monotonic()

    def forget(self) -> None:
        """Drops what is too old to matter. Called every now and then."""
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
        """The cap with its new status; None: it stands as it is.

        `held` is what each object of the namespace holds, by uid, as of these versions of claims
        and Pods: an older look than the last that was written is not written over it. `seen` are
        the versions of the namespace's Pods, by uid.
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
    """Of a placed Pod all amounts are known."""
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
    """Of versions of a list: they are numbers that grow."""
    if other is None or not (one.isdecimal() and other.isdecimal()):
        return False
    return int(one) < int(other)


def _memory(value: object) -> int | None:
    """A cap that cannot be read lets nothing through: nobody knows what was meant."""
    try:
        return None if value is None else 0 if value in {0, "0"} else parse_memory(value)
    except QuantityError:
        return 0


def _cores(value: object) -> int | None:
    """Percent of a device: more than a hundred of several."""
    if value is None:
        return None
    try:
        return round(float(str(value).removesuffix("%")) * 10)
    except (ValueError, OverflowError):
        return 0


def _percent(permille: int) -> str:
    return f"{permille / 10:g}%"
