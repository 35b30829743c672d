"""`Card`: what an application holds of a compute pool, as a context manager."""

from __future__ import annotations

import atexit
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.client.options import blocks_of
from penstock.model import PenstockError

if TYPE_CHECKING:
    from typing_extensions import Self

    from penstock.client.activation import Activation
    from penstock.client.connect import PoolPlace
    from penstock.node.rpc import ApplicationMessage, PoolLease

SUSPENDED = frozenset({"suspending", "suspended", "resuming"})


@dataclass(frozen=True)
class Part:
    """What an application has on one card: blocks `first` to `last`, memory, share of its time."""

    node: str
    device_uuid: str
    device_index: int
    model: str
    first: int
    last: int
    memory_bytes: int
    cores_permille: int


@dataclass(frozen=True)
class Reason:
    """What an application waits for, in one sentence, and what would help."""

    phase: str
    reason: str
    helps: tuple[str, ...]
    place: int  # in the queue, 1 is the first; 0: it does not wait


class Card:
    """An application of a compute pool that this process holds."""

    def __init__(
        self,
        place: PoolPlace,
        application: ApplicationMessage,
        activation: Activation | None = None,
        lease: PoolLease | None = None,
    ) -> None:
        """Made by `penstock.acquire`."""
        self.name = application.name
        self._application = application  # as it was granted
        self._place = place
        self._activation = activation
        self._lease = lease
        self._owner_pid = os.getpid()
        self._is_released = False
        self._take(application)
        atexit.register(self._at_exit)

    @property
    def blocks(self) -> int:
        """How many blocks it holds: whole TFLOPS."""
        return self._blocks

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The numbers of its blocks, as ranges of which both ends are included."""
        return self._runs

    @property
    def parts(self) -> tuple[Part, ...]:
        """The blocks, memory and cores on each card."""
        return self._parts

    @property
    def is_local(self) -> bool:
        """Whether this process runs as the application; otherwise it only holds the blocks."""
        return self._activation is not None

    @property
    def suspended(self) -> bool:
        """Whether it is suspended now, and its work stands still. Raises `PenstockError`."""
        return self.why().phase in SUSPENDED

    def why(self) -> Reason:
        """What it waits for, if it waits. Raises `PenstockError`."""
        with self._place.connect() as client:
            answer = client.why(self.name)
        return Reason(answer.application.phase, answer.reason, tuple(answer.helps), answer.place)

    def resize(self, tflops: float) -> None:
        """Changes how many blocks it holds, on the cards that it has.

        Raises:
            PenstockError: there is no room on these cards, or the memory in use does not fit.
        """
        blocks = blocks_of(tflops)
        self._check_owner()
        with self._place.connect() as client:
            self._take(client.resize(self.name, blocks))

    def release(self) -> bool:
        """Gives the blocks back; returns whether that has happened already.

        A process that has used the device cannot leave the application while it lives: what it has
        on the device stays there. It then gives the blocks back when it ends, and the result is
        False. Children that run as the application are ended otherwise. In a forked child nothing
        happens, as the blocks are its parent's.

        Raises:
            PenstockError: the pool does not answer. The node gives the blocks back when this
                process ends.
        """
        if self._is_released or os.getpid() != self._owner_pid:
            return self._is_released
        if self._activation is not None:
            is_used = self._activation.is_used
            self._activation.end()
            if is_used:
                return False
        with self._place.connect() as client:
            try:
                why = "its holder has released it"
                client.release(self.name, reason=why, only=self._application)
            except PenstockError as error:
                if error.reason != "no-such-tenant":  # it has ended already
                    raise
        self._is_released = True
        self._close()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.release()
        except PenstockError:
            if kind is None:  # an error of the program itself is the one to show
                raise

    def __repr__(self) -> str:
        runs = ", ".join(f"{first}-{last}" for first, last in self._runs)
        return f"<penstock.Card {self.name}: {self._blocks} blocks ({runs})>"

    def _take(self, application: ApplicationMessage) -> None:
        self._blocks = application.blocks
        self._runs = tuple((run.first, run.last) for run in application.runs)
        self._parts = tuple(
            Part(
                one.node,
                one.device_uuid,
                one.device_index,
                one.model,
                one.first,
                one.last,
                one.memory_bytes,
                one.cores_permille,
            )
            for one in application.parts
        )

    def _check_owner(self) -> None:
        if self._is_released:
            raise PenstockError(
                f"application {self.name} is released", "its blocks have been given back",
                "acquire again",
            )  # fmt: skip
        if os.getpid() != self._owner_pid:
            raise PenstockError(
                f"application {self.name} belongs to the parent of this process",
                "only the process that acquired it may change it", "change it there",
            )  # fmt: skip

    def _close(self) -> None:
        atexit.unregister(self._at_exit)
        if self._lease is not None:
            self._lease.close()

    def _at_exit(self) -> None:
        with contextlib.suppress(PenstockError):  # the node notices the end of this process
            self.release()
