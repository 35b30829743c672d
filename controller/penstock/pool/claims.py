"""Claims: what callers ask of the pool about applications, and how claims end by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.model.names import check_tenant_name, name_from_command
from penstock.pool.holding import Holding
from penstock.scheduling.blocks.advice import advice
from penstock.scheduling.blocks.growth import shrunk

if TYPE_CHECKING:
    from penstock.pool.caller import Caller
    from penstock.pool.holding import Outcome
    from penstock.pool.manager import Manager
    from penstock.pool.registry import Registry
    from penstock.scheduling.blocks.actions import Decision
    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.run import Run


@dataclass(frozen=True)
class Asked:
    """A claim as its caller asked for it."""

    claim: Claim
    name: str = ""
    request_id: str = ""
    wait_ns: int = 0
    until_revoked: bool = False
    mode: str = ""
    command: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


class Claims:
    """Claims, releases and resizes of one pool."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def acquire(self, asked: Asked, caller: Caller) -> str:
        """Claims blocks, or finds the claim of the same request; returns the application's name.

        Raises:
            PenstockError: the claim was refused.
        """
        with self._manager.changing() as registry:
            known = registry.by_request.get((caller.owner, asked.request_id))
            if known is not None and asked.request_id:
                self._manager.leases.attach(known)
                return known
            self._check(registry, asked, caller)
            name = self._name(registry, asked)
            now_ns = self._manager.clock.now_ns()
            decision = registry.pool.acquire(name, asked.claim, now_ns, wait=asked.wait_ns > 0)
            if decision.outcome == "refused":
                error = _refused(registry, asked.claim, decision, now_ns)
                raise error
            one = Holding(
                name, caller.owner, now_ns, now_ns, asked.claim.blocks, asked.request_id,
                caller.user, caller.uid, caller.node, asked.until_revoked, asked.wait_ns,
                asked.claim.kind, asked.claim.span, asked.claim.node, asked.mode,
                list(asked.command), asked.labels,
            )  # fmt: skip
            registry.add(one)
            registry.say("claimed", name, blocks=asked.claim.blocks, owner=caller.owner)
            if decision.outcome == "starting":
                registry.become(one, "preparing")
            registry.absorb(decision.actions)
            if one.state in {"waiting", "preparing"}:
                registry.say(one.state, name, reason=one.reason)
            self._manager.ended.pop(name, None)
            self._manager.leases.drop(name)
            self._manager.leases.attach(name)
            return name

    def release(
        self,
        name: str,
        caller: Caller,
        reason: str = "",
        grace_ns: int | None = None,
        claimed_ns: int = 0,
    ) -> int:
        """Ends an application; returns when it was claimed, 0 if it has ended already.

        Args:
            name: Its name.
            caller: Who asks.
            reason: Why, for its events.
            grace_ns: Between SIGTERM and SIGKILL; None: the usual time. The shortest that was asked
                for applies.
            claimed_ns: Only the application that was claimed then is meant; 0: whichever has the
                name.

        Raises:
            PenstockError: there was no such application, or it is another's.
        """
        with self._manager.changing() as registry:
            one = registry.holdings.get(name)
            if one is None:
                self._check_was_there(name)
                return 0
            if claimed_ns not in {0, one.claimed_ns}:
                return 0
            check_may_change(one, caller)
            if grace_ns is not None and (one.grace_ns is None or grace_ns < one.grace_ns):
                one.grace_ns = grace_ns
                registry.changed.add(name)
                registry.changed_nodes.update(one.nodes)
            registry.end(one, "released", reason or f"{caller.owner} released it")
            return one.claimed_ns

    def resize(self, name: str, blocks: int, caller: Caller) -> bool:
        """Begins to change an application's size; False if it has that size already.

        Raises:
            PenstockError: it does not run, is another's, or there is no room.
        """
        with self._manager.changing() as registry:
            one = self.holding(registry, name)
            check_may_change(one, caller)
            core = registry.pool.applications.get(name)
            if one.state != "running" or core is None or core.phase != "running":
                raise PenstockError(
                    f"application {name} cannot be resized", f"it is {one.state}",
                    "wait until it runs: penstock pool watch", reason="not-now",
                )  # fmt: skip
            if one.ordered_blocks:
                raise PenstockError(
                    f"application {name} cannot be resized",
                    f"it is being resized to {one.ordered_blocks} blocks already",
                    "wait until that is done", reason="not-now",
                )  # fmt: skip
            if blocks == core.claim.blocks:
                return False
            self._manager.progress.resizes.pop(name, None)
            if blocks < core.claim.blocks:
                runs = shrunk(registry.pool.space, core.runs, blocks)
            else:
                runs = self._grow(registry, one, blocks)
            one.ordered_blocks = blocks
            registry.order(one, runs, suspended=False)
            registry.say("resizing", name, blocks=blocks)
            return True

    def keep_alive(self, names: list[str], caller: Caller) -> list[str]:
        """Notes that a holder is alive; returns the applications that are not the caller's."""
        unknown = []
        with self._manager.reading() as registry:
            for name in names:
                one = registry.holdings.get(name)
                if one is None or one.state == "ending" or one.owner != caller.owner:
                    unknown.append(name)
                else:
                    self._manager.leases.keep(name)
        return unknown

    def detach(self, name: str, *, answered: bool) -> None:
        """Notes the end of a stream that waited for an application."""
        with self._manager.lock:
            self._manager.leases.detach(name, answered=answered)

    def expire(self) -> None:
        """Ends claims that have waited for too long, and those whose holder is gone."""
        with self._manager.changing() as registry:
            now_ns = self._manager.clock.now_ns()
            waiting = [registry.holdings.get(name) for name in registry.pool.queue]
            for one in waiting:
                if one is None or one.state != "waiting" or now_ns < one.claimed_ns + one.wait_ns:
                    continue
                claim = registry.pool.applications[one.name].claim
                why = registry.pool.shortage(claim, now_ns)
                registry.end(one, "timed-out", f"{one.wait_ns / 1e9:g} s are over: {why}")
            for one, why in self._manager.leases.over(registry, self._manager.nodes):
                outcome: Outcome = "withdrawn" if one.state in {"waiting", "preparing"} else "gone"
                registry.end(one, outcome, why)

    def holding(self, registry: Registry, name: str) -> Holding:
        """The application of that name. Raises `PenstockError` if there is none."""
        one = registry.holdings.get(name)
        if one is None:
            raise no_such(name)
        return one

    # How it is done

    def _check(self, registry: Registry, asked: Asked, caller: Caller) -> None:
        settings = self._manager.settings
        if not caller.is_admin and asked.claim.priority > settings.highest_priority:
            raise PenstockError(
                f"priority {asked.claim.priority} is not allowed",
                f"users may claim with at most {settings.highest_priority}",
                "choose a lower priority, or ask an administrator", reason="not-allowed",
            )  # fmt: skip
        owned = registry.of_owner.get(caller.owner, set())
        if not caller.is_admin and len(owned) >= settings.most_waiting_of_user:
            waiting = sum(
                registry.holdings[name].state in {"waiting", "preparing"} for name in owned
            )
            if waiting >= settings.most_waiting_of_user:
                raise _too_many(caller, f"{waiting} claims that wait")
            if len(owned) >= settings.most_applications_of_user:
                raise _too_many(caller, f"{len(owned)} applications")
        if len(registry.holdings) >= settings.most_applications:
            raise _too_many(caller, f"{len(registry.holdings)} applications, with others'")

    @staticmethod
    def _name(registry: Registry, asked: Asked) -> str:
        taken = registry.holdings
        if not asked.name:
            return name_from_command(asked.command or ("app",), taken)
        if asked.name in taken:
            raise PenstockError(
                f"application {asked.name} exists already", f"it is {taken[asked.name].state}",
                "choose another name, or release it: penstock pool release", reason="exists",
            )  # fmt: skip
        return check_tenant_name(asked.name)

    def _grow(self, registry: Registry, one: Holding, blocks: int) -> tuple[Run, ...]:
        core = registry.pool.applications[one.name]
        before, before_blocks = core.runs, core.claim.blocks
        try:
            runs, actions = registry.pool.resize(one.name, blocks, self._manager.clock.now_ns())
        except ValueError as error:
            registry.pool.changed.discard(one.name)
            raise PenstockError(
                f"application {one.name} cannot have {blocks} blocks", str(error),
                "ask for fewer, or wait for others to end", reason="not-enough-left",
            ) from error  # fmt: skip
        one.before, one.before_blocks = before, before_blocks
        registry.absorb(actions)
        return runs

    def _check_was_there(self, name: str) -> None:
        if name not in self._manager.ended and not self._manager.store.events(0, 1, [name]):
            raise no_such(name)


def check_may_change(one: Holding, caller: Caller) -> None:
    """Raises `PenstockError` if the application is another's, and the caller no administrator."""
    if not caller.is_admin and one.owner != caller.owner:
        raise PenstockError(
            f"{caller.owner} may not change application {one.name}", f"it belongs to {one.owner}",
            f"ask {one.owner} or an administrator", reason="not-yours",
        )  # fmt: skip


def no_such(name: str) -> PenstockError:
    """The error for an application that is not in the pool."""
    return PenstockError(
        f"there is no application {name} in the pool", "none of that name was claimed, or it ended",
        "see penstock pool status", reason="no-such-tenant",
    )  # fmt: skip


def _refused(registry: Registry, claim: Claim, decision: Decision, now_ns: int) -> PenstockError:
    """The error for a claim without room; what no release can give is an invalid request."""
    what = f"the claim of {claim.words} is refused"
    if not decision.is_never:
        return PenstockError(
            what, decision.reason, "ask for fewer, or wait for others to end (--wait)",
            reason="not-enough-left",
        )  # fmt: skip
    found = advice(registry.pool, claim, now_ns)
    return PenstockError(what, found.reason, ", or ".join(found.helps), reason="invalid")


def _too_many(caller: Caller, what: str) -> PenstockError:
    return PenstockError(
        f"{caller.owner} may not claim more", f"there are {what}",
        "release some, or wait for them to end", reason="not-now",
    )  # fmt: skip
