"""Policy annotations of a Pod: the QuotaPolicy it names, its mode, and what follows on excess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.objects.names import GRACE, MODE, ON_EXCEED, POLICY
from penstock.kube.quota.policies import holding
from penstock.kube.quota.policy_bounds import bound_of
from penstock.kube.webhook.verdict import pointer
from penstock.model import PenstockError, nearest
from penstock.model.limits import MODES
from penstock.model.quantity import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.kube.objects.api_client import Object
    from penstock.kube.quota.policy_bounds import Bound
    from penstock.kube.webhook.review_context import ReviewContext
    from penstock.kube.webhook.verdict import Verdict

MOST_NAMES = 5


def bound_for(pod: Object, namespace: str, around: ReviewContext, verdict: Verdict) -> Bound | None:
    """The bound that holds for a Pod; refuses it if a policy is missing or not valid.

    Raises:
        ApiError: the policies are not known yet.
    """
    metadata = pod.get("metadata") or {}
    named = (metadata.get("annotations") or {}).get(POLICY)
    policies = around.policies(namespace)
    if named is not None and named not in {one.name for one in policies or ()}:
        why = "this cluster has no QuotaPolicies"
        if policies is not None:
            names = sorted(one.name for one in policies)
            near = nearest(named, names)
            have = f"but {near}" if near else f"it has {', '.join(names[:MOST_NAMES]) or 'none'}"
            why = f"namespace {namespace} has no such QuotaPolicy, {have}"
        verdict.refuse(f"annotation {POLICY}: {named}", why, "name one that is there, or none")
        return None
    try:
        return bound_of(holding(policies or (), metadata.get("labels") or {}, named or ""))
    except PenstockError as error:
        verdict.refuse_for(error)
        return None


@dataclass(frozen=True)
class Behaviour:
    """How a share by extended resources behaves; empty: not set. Claims have parameters instead."""

    mode: str
    on_exceed: str = ""
    grace: str = ""

    @property
    def may_suspend(self) -> bool:
        """Whether enforcement may suspend the share."""
        return self.on_exceed == "suspend"

    @classmethod
    def of(cls, annotations: Mapping[str, str], bound: Bound | None, verdict: Verdict) -> Behaviour:
        """The behaviour by the Pod's annotations, and by its policy for those it omits.

        Only the policy decides what follows on excess: a user who could change that would have no
        quota.
        """
        mode = annotations.get(MODE, "")
        if MODE in annotations and mode not in MODES:
            verdict.refuse(
                f"annotation {MODE}: {mode}", "there is no such mode", "strict or elastic"
            )
        if bound is None:
            for name in (ON_EXCEED, GRACE):
                if name in annotations:
                    verdict.refuse(
                        f"annotation {name}",
                        "what follows on excess is a QuotaPolicy's to say, and none holds here",
                        "leave it out, or ask for a policy that selects the Pod",
                    )
            return cls(mode)
        theirs = {ON_EXCEED: str(bound.measured), GRACE: format_duration(bound.grace_ns)}
        for name, word in theirs.items():
            said = annotations.get(name, word)
            if said != word:
                verdict.refuse(
                    f"annotation {name}: {said[:60]}", f"{bound} says {word}", "leave it out"
                )
        usual = "" if bound.mode == "strict" else bound.mode
        return cls(mode or usual, theirs[ON_EXCEED], theirs[GRACE])

    def patch(self, pod: Object) -> Iterator[Object]:
        """Patches for the annotations that the Pod does not have yet."""
        there = (pod.get("metadata") or {}).get("annotations")
        said = {MODE: self.mode, ON_EXCEED: self.on_exceed, GRACE: self.grace}
        missing = {name: word for name, word in said.items() if word and name not in (there or {})}
        if missing and there is None:
            yield {"op": "add", "path": "/metadata/annotations", "value": missing}
            return
        for name, word in missing.items():
            yield {"op": "add", "path": pointer("metadata", "annotations", name), "value": word}
