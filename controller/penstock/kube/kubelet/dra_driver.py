"""DRA driver: prepares claims before containers start, and unprepares them after they ended."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from penstock.kube.kubelet.claim import ClaimRef, read_claim
from penstock.kube.kubelet.claim_checks import Scrutiny
from penstock.kube.objects.api_client import CLAIMS, ApiError
from penstock.model import PenstockError
from penstock.node.rpc.status import cut
from penstock_api.kubelet import dra_v1_pb2 as pb
from penstock_api.kubelet import dra_v1_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    import grpc

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.claim import Granted
    from penstock.kube.kubelet.node_inventory import Inventory
    from penstock.kube.objects.api_client import Api, Object

# The kubelet waits 45 s for all claims of a call, and then calls again.
PREPARE_WITHIN_S = 30.0
# The next call may come half a minute later, so the driver waits while a problem may pass sooner.
# For example, a Pod that is deleted without grace frees its share seconds after the scheduler has
# allocated the share to the next Pod.
PATIENCE_S = 25.0
AGAIN_S = 0.5
PASSING = frozenset({"not-enough-left", "not-now", "unavailable"})
BEFORE_IT_GIVES_UP_S = 1.0  # margin between the response and a shorter deadline of the caller
UNPREPARE_WITHIN_S = 40.0  # the kernel takes up to ten seconds to end processes that hang
MOST_ERROR_BYTES = 2000
Log = Any  # log(event, **fields)


class Driver(dra_v1_pb2_grpc.DRAPluginServicer):
    """The driver's gRPC service. Every call may be repeated, and any two may overlap."""

    def __init__(
        self,
        api: Api,
        tenants: Tenants,
        inventory: Inventory,
        pool: str,
        log: Log,
        *,
        unseen: Collection[str] | None = None,
    ) -> None:
        """`pool` is this node's name in ResourceSlices; `Scrutiny` explains `unseen`."""
        self._api = api
        self._scrutiny = Scrutiny(api, unseen)
        self._tenants = tenants
        self._inventory = inventory
        self._pool = pool
        self._log = log
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.under_way: dict[str, int] = {}  # calls by the uid of the claim

    async def NodePrepareResources(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.NodePrepareResourcesRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.NodePrepareResourcesResponse:
        """Grants a tenant for each claim, or returns an error for that claim."""
        answers = await self._each(
            request.claims, "prepare", _within(context, PREPARE_WITHIN_S), self._prepare,
            lambda error: pb.NodePrepareResourceResponse(error=error),
        )  # fmt: skip
        return pb.NodePrepareResourcesResponse(claims=answers)

    async def NodeUnprepareResources(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.NodeUnprepareResourcesRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.NodeUnprepareResourcesResponse:
        """Ends the tenants, for which neither the API server nor the GPU driver is needed."""
        answers = await self._each(
            request.claims, "unprepare", _within(context, UNPREPARE_WITHIN_S), self._unprepare,
            lambda error: pb.NodeUnprepareResourceResponse(error=error),
        )  # fmt: skip
        return pb.NodeUnprepareResourcesResponse(claims=answers)

    async def _each(
        self,
        claims: Iterable[pb.Claim],
        act: str,
        within_s: float,
        do: Callable[[ClaimRef], Awaitable[Any]],
        failed: Callable[[str], Any],
    ) -> dict[str, Any]:
        refs = list(dict.fromkeys(ClaimRef(one.namespace, one.name, one.uid) for one in claims))

        async def one(ref: ClaimRef) -> Any:  # noqa: ANN401 - as `do`
            self.under_way[ref.uid] = self.under_way.get(ref.uid, 0) + 1
            try:
                return await asyncio.wait_for(self._alone(ref, do), within_s)
            except PenstockError as error:
                why = str(error)
            except asyncio.TimeoutError:
                why = f"{ref} was not {act}d within {within_s:.0f} s; the kubelet tries again"
            except Exception as error:  # noqa: BLE001 - a malformed claim must not delay others
                why = f"{ref} cannot be {act}d: {type(error).__name__}: {error}"
            finally:
                self.under_way[ref.uid] -= 1
                if not self.under_way[ref.uid]:
                    del self.under_way[ref.uid]
            self._log(f"{act} failed", claim=str(ref), uid=ref.uid, why=why)
            return failed(cut(why, MOST_ERROR_BYTES))

        answers = await asyncio.gather(*(one(ref) for ref in refs))
        return {ref.uid: answer for ref, answer in zip(refs, answers, strict=True)}

    async def _alone(self, ref: ClaimRef, do: Callable[[ClaimRef], Awaitable[Any]]) -> Any:  # noqa: ANN401 - as `do`
        lock = self._locks.setdefault(ref.uid, asyncio.Lock())
        async with lock:
            return await do(ref)

    async def _prepare(self, ref: ClaimRef) -> pb.NodePrepareResourceResponse:
        until_s = time.monotonic() + PATIENCE_S
        said = False
        while True:
            try:
                return await self._prepare_once(ref)
            except PenstockError as error:
                if error.reason not in PASSING or time.monotonic() > until_s:
                    raise
                if not said:
                    self._log("prepare waits", claim=str(ref), uid=ref.uid, why=str(error))
                    said = True
            await asyncio.sleep(AGAIN_S)

    async def _prepare_once(self, ref: ClaimRef) -> pb.NodePrepareResourceResponse:
        granted, claim = await self._read(ref)
        uuids = self._inventory.uuids()
        if any(part.device not in uuids for part in granted.parts):
            await self._inventory.look()  # this process may just have started
            uuids = self._inventory.uuids()
        granted = await self._scrutiny.look(claim, granted, self._inventory.named())
        allocation = granted.allocation(uuids)
        cdi_devices = await self._tenants.grant(allocation)
        self._log("prepared", claim=str(ref), uid=ref.uid, tenant=allocation.tenant)
        return pb.NodePrepareResourceResponse(
            devices=[
                pb.Device(
                    # If "main/small" is an alternative of "main", containers refer to "main".
                    request_names=[part.request.split("/")[0]],
                    pool_name=self._pool,
                    device_name=part.device,
                    cdi_device_ids=cdi_devices,
                    share_id=part.share_id,
                )
                for part in granted.parts
            ]
        )

    async def _read(self, ref: ClaimRef) -> tuple[Granted, Object]:
        try:
            one = await self._api.get(CLAIMS, ref.name, ref.namespace)
        except ApiError as error:
            if error.status == 404:
                raise PenstockError(
                    f"{ref} cannot be prepared", "it was deleted", "do nothing: its Pod ends, too"
                ) from error
            raise
        return read_claim(one, ref, self._pool), one

    async def _unprepare(self, ref: ClaimRef) -> pb.NodeUnprepareResourceResponse:
        owned = await self._tenants.owned()
        found = owned.get(ref.uid)
        if found is not None:
            await self._tenants.revoke(found.name, reason="no container uses it any more")
        self._log("unprepared", claim=str(ref), uid=ref.uid, tenant=found.name if found else None)
        return pb.NodeUnprepareResourceResponse()


def _within(context: grpc.aio.ServicerContext[Any, Any], longest_s: float) -> float:
    left_s = cast("float | None", context.time_remaining())
    return longest_s if left_s is None else min(longest_s, left_s - BEFORE_IT_GIVES_UP_S)
