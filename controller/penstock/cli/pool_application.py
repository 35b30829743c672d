"""A command that runs as an application of a compute pool, on this node through its agent."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
import time
from typing import TYPE_CHECKING

from penstock.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.client.connect import PoolPlace
    from penstock.node.rpc import AcquireMessage, PoolClaim, PoolClient, PoolEventMessage

LOOK_S = 3600.0  # the agent supervises the application, so only signals need to wake this process
RELEASE_S = 5.0  # for the order; if it does not arrive, the agent notices that the holder has ended
KILLED = {128 + signal.SIGTERM, 128 + signal.SIGKILL}
ANSWERED_S = 5.0  # for the pool to answer again, if it did not when the command ended
ENDING_S = 2.0  # then, for the event: it comes when the node has reported the end
AGAIN_S = 0.5  # between attempts to follow the pool
# Events during the run that are printed for the user, and their meaning.
STANDING = {
    "suspending": "is being suspended",
    "suspended": "is suspended",
    "resuming": "is being resumed",
    "moving": "is being moved",
}
GOING_ON = {
    "running": "goes on",
    "resumed": "goes on",
    "moved": "goes on",
    "not-suspended": "goes on: it could not be suspended",
}
ENDINGS = {
    "released": "was released",
    "lost": "is lost",
    "failed": "has failed on its node",
    "gone": "was ended: its holder did not answer",
}


def run_application(
    place: PoolPlace,
    claim: PoolClaim,
    command: list[str],
    *,
    quiet: bool,
    environment: Callable[[AcquireMessage], Mapping[str, str]] | None = None,
) -> int:
    """Claims, runs the command as the application, and releases; returns the exit code.

    `environment`: makes the command's environment of what was granted, wherever that is; None: the
    blocks are of this node, and the command runs under their quota.

    Raises:
        PenstockError: the claim is refused, or there is no agent of a pool here.
    """
    from penstock.cli.pool_waiting import InterruptedWaitError, wait_for_grant
    from penstock.model import PenstockError
    from penstock.node.launch.child import Child, CommandNotStartedError, block_signals

    blocked = block_signals()  # before gRPC starts threads, which would take them
    client = place.local_agent()
    if client is None:
        raise PenstockError(
            "no agent runs here", "a command runs on a node of the pool, through the node's agent",
            "start the agent (penstock agent --pool), or run this on a node", reason="unavailable",
        )  # fmt: skip
    if environment is None:
        claim, environment = place.on_this_node(claim), _environment
    claim = dataclasses.replace(claim, command=tuple(command))
    with client:
        try:
            granted = wait_for_grant(client, claim, quiet=quiet)
        except InterruptedWaitError as interrupted:  # a grant ends with this process, its holder
            return 128 + interrupted.number
        try:
            child = Child(command, environment(granted), blocked)
        except CommandNotStartedError as error:
            _release(client, granted, "its command could not be started")
            say(error)
            return error.exit_code
        except BaseException:
            _release(client, granted, "its command could not be started")
            raise
    if not quiet:
        say(_summary(granted))
    watcher = _Watcher(place, granted, quiet=quiet)
    watcher.start()
    code = child.wait(lambda: None, LOOK_S)
    ending = watcher.ending(code)
    watcher.close()
    if ending is not None:
        say(ending)
    if (client := place.local_agent()) is not None:
        with client:
            _release(client, granted, "its command has ended")
    return code


class _Watcher(threading.Thread):
    """Tells the user what happens to the application while its command runs."""

    def __init__(self, place: PoolPlace, granted: AcquireMessage, *, quiet: bool) -> None:
        super().__init__(name="watch", daemon=True)
        self._place, self._name, self._is_quiet = place, granted.application.name, quiet
        # By the manager's clock, which need not be this node's.
        self._since_ns = granted.application.claimed.ToNanoseconds()
        self._client: PoolClient | None = None
        self._last: PoolEventMessage | None = None
        self._stands = False
        self._follows = threading.Event()  # the pool has told what has happened so far
        self._closing = threading.Event()

    def run(self) -> None:
        """Until it is closed; while the pool does not answer, it asks again."""
        from penstock.model import PenstockError

        while not self._closing.is_set():
            with contextlib.suppress(PenstockError):
                self._follow()
            self._follows.clear()
            self._closing.wait(AGAIN_S)

    def _follow(self) -> None:
        self._client = self._place.local_agent()
        if self._client is None:
            return
        with self._client:
            for event in self._client.watch([self._name], follow=True):
                self._follows.set()
                if event.time.ToNanoseconds() < self._since_ns:
                    continue
                self._last, self._since_ns = event, event.time.ToNanoseconds() + 1
                if not self._is_quiet:
                    self._tell(event)

    def _tell(self, event: PoolEventMessage) -> None:
        """Tells the user that the application stands still, or goes on."""
        word = STANDING.get(event.event)
        if word is None and self._stands:
            word = GOING_ON.get(event.event)
        if word is None:
            return
        self._stands = event.event in STANDING
        say(f"application {self._name} {word}{f': {event.reason}' if event.reason else ''}")

    def ending(self, code: int) -> str | None:
        """Why the pool has ended the command; None if the pool did not."""
        if code not in KILLED:
            return None
        self._follows.wait(ANSWERED_S)
        deadline_s = time.monotonic() + ENDING_S
        while time.monotonic() < deadline_s:
            last = self._last
            if last is not None and last.event in ENDINGS:
                reason = f": {last.reason}" if last.reason else ""
                return f"application {self._name} {ENDINGS[last.event]}{reason}"
            time.sleep(0.05)
        return None

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        if self._client is not None:
            self._client.cancel()
        self.join(1)


def _release(client: PoolClient, granted: AcquireMessage, reason: str) -> None:
    """Releases; if that fails, the agent notices that the holder has ended."""
    from penstock.model import PenstockError

    with contextlib.suppress(PenstockError):
        one = granted.application  # not a later one of its name
        client.release(one.name, reason=reason, only=one, timeout_s=RELEASE_S)


def _environment(granted: AcquireMessage) -> Mapping[str, str]:
    """The environment of a program that runs as the application. Raises `PenstockError`."""
    from penstock.model import PenstockError
    from penstock.node.tenants.environment import program_environment

    if granted.environment:
        return program_environment(granted.environment)
    raise PenstockError(
        f"application {granted.application.name} cannot run here",
        "the agent did not say how a program runs as it",
        "see the agent's log; use the same release of Penstock for this command and the agent",
        reason="unavailable",
    )  # fmt: skip


def _summary(granted: AcquireMessage) -> str:
    from penstock.cli.render.pool_table import runs_text
    from penstock.model import human_memory

    one = granted.application
    cards = "; ".join(
        f"{human_memory(part.memory_bytes)} of device {part.device_index} ({part.model})"
        for part in one.parts
    )
    return f"application {one.name}: {one.blocks} blocks ({runs_text(one.runs)}), {cards}"
