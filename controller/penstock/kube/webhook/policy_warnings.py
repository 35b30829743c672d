"""Policy annotations of a Pod: the QuotaPolicy that it names, its mode, and its enforcement."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.kube.objects.names import KEPT, MODE, POLICY
from penstock.kube.objects.terms_annotations import write_terms
from penstock.kube.quota.policies import holding
from penstock.kube.quota.policy_bounds import bound_of
from penstock.kube.webhook.verdict import pointer
from penstock.model import PenstockError, nearest
from penstock.model.terms import DEFAULT_MODE, MODES
from penstock.policy.resolve import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.kube.objects.api_client import Object
    from penstock.kube.quota.policy_bounds import Bound
    from penstock.kube.webhook.review_context import ReviewContext
    from penstock.kube.webhook.verdict import Verdict

MOST_NAMES = 5


def bound_for(pod: Object, namespace: str, around: ReviewContext, verdict: Verdict) -> Bound | None:
    """The bound that applies to a Pod; refuses the Pod if a policy is missing or not valid.

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
        fix = "name an existing policy, or leave the annotation out"
        verdict.refuse(f"invalid annotation {POLICY}: {named}", why, fix)
        return None
    try:
        return bound_of(holding(policies or (), metadata.get("labels") or {}, named or ""))
    except PenstockError as error:
        verdict.refuse_for(error)
        return None


def terms_of(annotations: Mapping[str, str], bound: Bound | None, verdict: Verdict) -> Settings:
    """The terms of shares by extended resources, from the Pod's annotations and its policy.

    Only the policy decides how an exceeded quota is enforced, because a user who could change that
    would have no quota. Claims have parameters instead of annotations.
    """
    said = annotations.get(MODE, "")
    mode = next((one for one in MODES if one == said), None)
    if MODE in annotations and mode is None:
        fix = "write strict or elastic"
        verdict.refuse(f"invalid annotation {MODE}: {said}", "there is no such mode", fix)
    if bound is None:
        for name in KEPT:
            if name in annotations:
                verdict.refuse(
                    f"annotation {name} is not allowed",
                    "only a QuotaPolicy sets this, and none applies to the Pod",
                    "leave it out, or ask an administrator for a policy that selects the Pod",
                )
        return Settings(mode)
    for name, word in write_terms(bound.floor).items():
        said = annotations.get(name, word)
        if said != word:
            verdict.refuse(
                f"invalid annotation {name}: {said[:60]}", f"{bound} sets {word}", "leave it out"
            )
    usual = None if bound.mode == DEFAULT_MODE else bound.mode
    return replace(bound.floor, mode=mode or usual)


def annotate(pod: Object, terms: Settings) -> Iterator[Object]:
    """Yields patches for the annotations that the Pod does not have yet."""
    there = (pod.get("metadata") or {}).get("annotations")
    written = write_terms(terms)
    missing = {name: word for name, word in written.items() if name not in (there or {})}
    if missing and there is None:
        yield {"op": "add", "path": "/metadata/annotations", "value": missing}
        return
    for name, word in missing.items():
        yield {"op": "add", "path": pointer("metadata", "annotations", name), "value": word}
