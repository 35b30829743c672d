"""Link to the manager of a compute pool: the Join stream, kept for as long as the agent runs.

The link has a thread and an event loop of its own, so that nothing of it delays the reconcile loop
or the agent's own server. It sends a report at once on each change and at least once a second, and
passes each list of orders on to the pool's member. Only the newest report and the newest list are
kept, so neither a manager that stops reading nor one that floods makes the agent's memory grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock import __version__
from penstock.model import PenstockError
from penstock.node.rpc.pool_convert import orders_of, report_to
from penstock.node.rpc.status import error_of
from penstock_api.v1 import pool_pb2 as pb
from penstock_api.v1 import pool_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.node.agent.pool_member import PoolMember
    from penstock.node.rpc.pool_endpoint import PoolEndpoint

REPORT_PERIOD_S = 1.0
LEAST_REPORT_GAP_S = 0.01  # between reports, however often something changes
LEAST_ORDERS_GAP_S = 0.005  # between lists, however many arrive
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 3.0
CONNECTS_WITHIN_S = 5.0
WRITES_WITHIN_S = 15.0  # a manager that does not read for so long is left
PROBE_PERIOD_S, PROBE_WITHIN_S = 5.0, 5.0  # a manager that is silent is asked whether it is there
SAME_PROBLEM_S = 60.0  # between two lines in the log about the same problem
_DEAD = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


class PoolLink:
    """Keeps the agent joined to its pool, from `start` to `stop`."""

    def __init__(
        self, member: PoolMember, endpoint: PoolEndpoint, node: str, report: Callable[..., None]
    ) -> None:
        self._member = member
        self._endpoint = endpoint
        self._node = node
        self._report = report
        self.address = ""  # of the agent for other nodes: HOST:PORT
        self.card_uid: int | None = None  # the user of cards whose programs are on other nodes
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._heard_s = 0.0
        self._joined: str | None = None
        self._logged: tuple[str, float] | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="pool-link", daemon=True)

    @property
    def joined(self) -> str | None:
        """The address of the manager whose orders are obeyed, None while there is none."""
        return self._joined

    def start(self) -> None:
        """Starts to dial."""
        self._member.on_change(self._on_change)
        self._thread.start()

    def stop(self) -> None:
        """Leaves the stream. The pool takes the node for away until it joins again."""

        def cancel() -> None:
            if self._task is not None:
                self._task.cancel()

        self._loop.call_soon_threadsafe(cancel)
        self._thread.join()

    def _on_change(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)

    def _run(self) -> None:
        self._task = self._loop.create_task(self._keep())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _keep(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        for address in itertools.cycle(self._endpoint.addresses):
            was_joined = False
            try:
                await self._join(address)
                problem = "the manager has ended the stream"
            except PenstockError as error:
                problem = str(error)
            except grpc.RpcError as error:
                problem = str(error_of(error, address))
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                problem = str(error) or type(error).__name__
            finally:
                was_joined, self._joined = self._joined is not None, None
            self._log_problem(address, problem, was_joined=was_joined)
            backoff_s = FIRST_BACKOFF_S if was_joined else backoff_s
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            backoff_s = min(LONGEST_BACKOFF_S, 2 * backoff_s)

    async def _join(self, address: str) -> None:
        """Keeps one stream until it ends or one side of it fails."""
        channel = self._endpoint.channel(address)
        try:
            await asyncio.wait_for(channel.channel_ready(), CONNECTS_WITHIN_S)
        except asyncio.TimeoutError:
            await channel.close()
            raise PenstockError(
                f"no manager of the pool answers at {address}",
                f"there was no connection within {CONNECTS_WITHIN_S:g} s",
                "check that penstock pool serve runs there, and the certificates of both sides",
                reason="unavailable",
            ) from None
        stub: Any = pool_pb2_grpc.PoolStub(channel)  # type: ignore[no-untyped-call] # generated
        call = stub.Join()
        self._heard_s = time.monotonic()
        work: list[Coroutine[Any, Any, None]] = [
            self._read(call, address), self._write(call), self._probe(channel, address)
        ]  # fmt: skip
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failed = next((one for one in done if one.exception() is not None), None)
            if tasks[0] not in done and failed is not None:
                # A broken stream fails both sides, and only the reader learns why.
                await asyncio.wait(tasks[:1], timeout=LEAST_REPORT_GAP_S)
            first = tasks[0] if tasks[0].done() else next(iter(done))
            first.result()
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await channel.close()

    async def _read(self, call: Any, address: str) -> None:  # noqa: ANN401 - grpc's call
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                return
            self._heard_s = time.monotonic()
            await self._take(message, address)
            await asyncio.sleep(LEAST_ORDERS_GAP_S)

    async def _take(self, message: pb.NodeOrders, address: str) -> None:
        if message.refused:
            raise PenstockError(
                f"the manager at {address} refuses this node", message.reason[:1000],
                "see penstock pool status, and the options of penstock agent", reason="not-allowed",
            )  # fmt: skip
        orders = orders_of(message, self.card_uid)
        await asyncio.to_thread(self._member.take, orders)
        if self._joined != address:
            self._joined, self._logged = address, None
            self._report("pool joined", address=address, pool=orders.pool, term=orders.term)

    async def _write(self, call: Any) -> None:  # noqa: ANN401 - grpc's call
        while True:
            self._changed.clear()
            report = report_to(self._member.state(), self._node, __version__, self.address)
            await asyncio.wait_for(call.write(report), WRITES_WITHIN_S)
            await asyncio.sleep(LEAST_REPORT_GAP_S)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), REPORT_PERIOD_S - LEAST_REPORT_GAP_S)

    async def _probe(self, channel: grpc.aio.Channel, address: str) -> None:
        """Asks a silent manager whether it is there: TCP notices a lost machine only after minutes.

        Any answer will do, so the manager need not serve gRPC's health service.

        Raises:
            PenstockError: there was no answer.
        """
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            await asyncio.sleep(PROBE_PERIOD_S)
            if time.monotonic() - self._heard_s < PROBE_PERIOD_S:
                continue
            try:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_WITHIN_S)
            except grpc.RpcError as error:
                if error.code() in _DEAD:
                    raise PenstockError(
                        f"the manager at {address} does not answer any more",
                        f"it was silent for {PROBE_PERIOD_S + PROBE_WITHIN_S:g} s",
                        "the agent dials again", reason="unavailable",
                    ) from error  # fmt: skip

    def _log_problem(self, address: str, problem: str, *, was_joined: bool) -> None:
        now_s = time.monotonic()
        said, at_s = self._logged or ("", 0.0)
        if was_joined or problem != said or now_s - at_s > SAME_PROBLEM_S:
            self._logged = (problem, now_s)
            event = "pool lost" if was_joined else "pool not joined"
            self._report(event, address=address, reason=problem)
