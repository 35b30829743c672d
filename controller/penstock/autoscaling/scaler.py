"""Scaler: samples, decides, acts and reports, to keep as many replicas as the policy calls for.

One call of `Scaler.tick` is one iteration; the caller runs the loop.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.autoscaling.process_tree import trees_of
from penstock.autoscaling.replicas import Phase, Replica, ReplicaSet
from penstock.model import PenstockError
from penstock.model.metric import METRICS
from penstock.scheduling.replicas.decide import (
    Decision,
    History,
    Observation,
    ReplicaSample,
    decide,
    floor_of,
)

if TYPE_CHECKING:
    from penstock.autoscaling.replica_tenancy import Tenancy
    from penstock.autoscaling.request_rate import Requests
    from penstock.autoscaling.sampling import Sampler
    from penstock.autoscaling.set_store import SetSpec, SetStore
    from penstock.policy.schema import Scale

DECIDE_PERIOD_NS = 10**9
REPORT_PERIOD_NS = 5 * 10**9  # how often the report on disk is rewritten if nothing changes
FIRST_DEMAND_NS = 3 * 10**9  # how long to wait for the first demand value with no replica


class Scaler:
    """Scaler of one set of replicas under one policy."""

    def __init__(
        self,
        store: SetStore,
        spec: SetSpec,
        scale: Scale,
        sampler: Sampler,
        *,
        grace_ns: int,
        ready_after_ns: int = 0,
        requests: Requests | None = None,
        tenancy: Tenancy | None = None,
    ) -> None:
        """Locks the set and adopts its live replicas.

        `tenancy` creates the tenants; if it is None, this process does. `grace_ns` is the time from
        SIGTERM to SIGKILL. A replica counts as ready `ready_after_ns` after its command started.

        Raises:
            PenstockError: another scaler has the set, or the set has replicas of another command.
        """
        store.make()
        self._lock = store.lock_scaler()
        self._store = store
        self._spec = spec
        self._scale = scale
        self._sampler = sampler
        self._ready_after_ns = ready_after_ns
        self._requests = requests
        try:
            self._refuse_another_command()
            store.write_spec(spec)
            self._set = ReplicaSet(store, spec, grace_ns, tenancy=tenancy)
        except BaseException:
            os.close(self._lock)
            raise
        self.wanted = self._set.highest()
        self.adopted = self.wanted
        self._history = History()
        self._decision = Decision(self.wanted, "")
        self._decided_ns: int | None = None
        self._began_ns = time.monotonic_ns()
        self._ending = False
        self._said: dict[str, str] = {}
        self._reported_ns = 0

    def tick(self) -> list[str]:
        """Runs one iteration, and returns log lines that say what changed and why.

        Call it several times a second. A failing replica, a full disk or missing values raise
        nothing.
        """
        now_ns = time.monotonic_ns()
        news: list[str] = []
        try:
            if not self._ending:
                news += self._decide(now_ns)
            replicas = self._set.tick(self.wanted, now_ns)
        except (OSError, PenstockError) as error:
            return self._once("fault", f"cannot keep the replicas: {error}")
        news += self._once("fault", "")
        news += self._news_of(replicas)
        if news or now_ns - self._reported_ns > REPORT_PERIOD_NS:
            self._reported_ns = now_ns
            self._store.write_report(self._report(replicas))
        return news

    def end(self) -> None:
        """Starts to end the replicas gracefully; call `tick` until `ended` is true."""
        self._ending = True
        self.wanted = 0

    def end_at_once(self) -> None:
        """Kills the remaining replicas."""
        self.end()
        self._set.tick(0, force=True)

    @property
    def ended(self) -> bool:
        """Whether no replica is left after `end`."""
        return self._ending and not self._set.replicas()

    def replicas(self) -> list[Replica]:
        """The replicas as of the last iteration."""
        return self._set.replicas()

    def close(self) -> None:
        """Releases the set. Live replicas keep running for the next scaler."""
        self._store.write_report(self._report(self._set.replicas()))
        os.close(self._lock)

    def _refuse_another_command(self) -> None:
        before = self._store.read_spec()
        if before is None or tuple(before.request.command) == tuple(self._spec.request.command):
            return
        if trees_of(self._store.directory):
            raise PenstockError(
                f"{self._store.name!r} runs another command",
                " ".join(before.request.command),
                f"end it with penstock scale stop {self._store.name}, or choose another --name",
            )

    def _decide(self, now_ns: int) -> list[str]:
        if self._decided_ns is not None and 0 <= now_ns - self._decided_ns < DECIDE_PERIOD_NS:
            return []
        by_number = {replica.number: replica for replica in self._set.replicas()}
        present = [by_number[n] for n in range(1, self.wanted + 1) if n in by_number]
        samples = self._sampler.replicas(present, self._ready_after_ns)
        samples += [ReplicaSample(ready=False)] * (self.wanted - len(samples))
        totals = self._sampler.totals()
        if (
            self.wanted == 0 == floor_of(self._scale)
            and not totals
            and now_ns - self._began_ns < FIRST_DEMAND_NS
        ):
            return []
        self._decided_ns = now_ns
        observation = Observation(time.monotonic_ns(), samples, totals)
        before = self.wanted
        self._decision, self._history = decide(observation, self._scale, self._history)
        self.wanted = self._decision.replicas
        if self.wanted == before:
            return []
        return [f"{before} → {self.wanted} replicas: {self._decision.reason}"]

    def _news_of(self, replicas: list[Replica]) -> list[str]:
        refused = [replica for replica in replicas if replica.phase is Phase.refused]
        fit = sum(replica.phase is Phase.running for replica in replicas)
        starting = any(replica.phase is Phase.starting for replica in replicas)
        if refused:
            news = self._once("fit", f"wants {self.wanted}, {fit} fit: {refused[0].reason}")
        else:  # while a replica is starting, the outcome is not known
            news = [] if starting else self._once("fit", "")
        for replica in replicas:
            waits = replica.phase is Phase.waiting and replica.reason
            if waits or replica.phase is Phase.running:
                text = f"{replica.tenant} {replica.reason}" if waits else ""
                news += self._once(replica.tenant, text)
        problems = self._requests.problems() if self._requests else []
        news += self._once("requests", f"no figure: {problems[0]}" if problems else "")
        return news

    def _once(self, about: str, text: str) -> list[str]:
        """`text` as a log line unless it repeats the last text; "" makes it forget that text."""
        if not text:
            self._said.pop(about, None)
            return []
        if self._said.get(about) == text:
            return []
        self._said[about] = text
        return [text]

    def _report(self, replicas: list[Replica]) -> dict[str, object]:
        scale, decision = self._scale, self._decision
        return {
            "set": self._store.name,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "min": floor_of(scale),
            "max": scale.max,
            "wanted": self.wanted,
            "reason": "ending" if self._ending else decision.reason,
            "values": {METRICS[metric].shown: value for metric, value in decision.values.items()},
            "replicas": [
                {
                    "number": replica.number,
                    "tenant": replica.tenant,
                    "phase": replica.phase.value,
                    "reason": replica.reason,
                }
                for replica in replicas
            ],
        }
