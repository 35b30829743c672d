"""Template review: warns authors of workloads whose Pods with shares would be refused.

A review of a template only warns. People see these warnings after `kubectl apply`, whereas they do
not see the messages about Pods that a controller creates. Each Pod is still reviewed on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.names import SCHEDULER
from penstock.kube.webhook.pod_review import review_new
from penstock.kube.webhook.verdict import Verdict

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object
    from penstock.kube.webhook.review_context import ReviewContext

TEMPLATED = frozenset({"deployments", "statefulsets", "daemonsets", "jobs", "cronjobs"})


async def review_template(
    maker: Object, namespace: str, around: ReviewContext, scheduler: str = SCHEDULER
) -> Verdict:
    """Reviews a Deployment, StatefulSet, DaemonSet, Job or CronJob. Raises `ApiError`."""
    spec = maker.get("spec") or {}
    spec = (spec.get("jobTemplate") or {}).get("spec") or spec
    found = await review_new(
        spec.get("template") or {}, namespace, around, scheduler,
        job_deadline_s=spec.get("activeDeadlineSeconds"),
    )  # fmt: skip
    told = [f"its Pods will be refused: {words}" for words in found.refusals]
    return Verdict(warnings=told + found.warnings)
