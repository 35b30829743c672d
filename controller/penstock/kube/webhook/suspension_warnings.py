"""Suspension warnings: probes and deadlines that would end a Pod while its share is suspended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.resource_request import asked, containers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kube.objects.api_client import Object

PROBES = ("livenessProbe", "startupProbe")


def deadlines(pod: Object, claims: frozenset[str], job_deadline_s: object = None) -> Iterator[str]:
    """Yields warnings for a Pod whose share may be suspended.

    Args:
        pod: The Pod as requested.
        claims: The Pod's names for its claims on our devices.
        job_deadline_s: Deadline of the Job that creates the Pod, if any.
    """
    spec = pod.get("spec") or {}
    for one, _, _ in containers(pod):
        named = {claim.get("name") for claim in (one.get("resources") or {}).get("claims") or []}
        if not asked(one) and not named & claims:
            continue
        for probe in PROBES:
            if one.get(probe):
                yield (
                    f"container {one.get('name')} has a {probe}: it may fail while the share is "
                    "suspended, and the kubelet then restarts the container; a readinessProbe "
                    "does no harm"
                )
    for where, seconds in (("the Pod", spec.get("activeDeadlineSeconds")), ("Job", job_deadline_s)):
        if seconds is not None:
            yield (
                f"activeDeadlineSeconds of {where} ({seconds}) keeps counting while the share is "
                "suspended: allow extra time for that, or leave it out"
            )
