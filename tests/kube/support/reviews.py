"""Reviews of Pods and claims in this process, over objects that a test gives."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from tests.kube.support.objects import Objects

from penstock.kube.webhook.admission_review import Reviewer
from penstock.kube.webhook.review_context import ReviewContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.policy.resolve import Settings


NAMESPACE = "team"


GIB = 1 << 30


HEAD = {"apiVersion": "penstock.io/v1alpha1", "kind": "VgpuParameters"}


GATE = {"readinessGates": [{"conditionType": "penstock.io/running"}]}


LABEL = {"penstock.io/vgpu": "true"}


def a_world(*, other_drivers: bool = False) -> Objects:
    made = Objects()
    ours = [{"cel": {"expression": 'device.driver == "penstock.io"'}}]
    made.put("deviceclasses", "vgpu.penstock.io", spec={"selectors": ours})
    if other_drivers:
        theirs = [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]
        made.put("deviceclasses", "theirs", spec={"selectors": theirs})
    return made


def a_policy(world: Objects, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
    selector = {"selector": {"matchLabels": labels}} if labels else {}
    spec = {"limits": {"memory": "8Gi", "cores": 30}, **selector, **spec}
    world.put("quotapolicies", name, NAMESPACE, spec=spec)


def claim_spec(
    exceed: dict[str, str] | None = None, device_class: str = "vgpu.penstock.io", **more: Any
) -> dict[str, Any]:
    capacity = {"requests": more.pop("amounts", {"memory": "8Gi", "coresPermille": "300"})}
    exactly = {"deviceClassName": device_class, "capacity": capacity, **more}
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if exceed is not None:
        opaque = {"driver": "penstock.io", "parameters": {**HEAD, "onExceed": exceed}}
        devices["config"] = [{"opaque": opaque}]
    return {"devices": devices}


def a_pod(claim: str = "claim", **more: Any) -> dict[str, Any]:
    metadata = {"name": "pod", "uid": "uid-pod", **more.pop("metadata", {})}
    container = {"name": "main", "resources": {"claims": [{"name": "gpu"}]}}
    container |= more.pop("container", {})
    claims = [{"name": "gpu", "resourceClaimName": claim}]
    return {"metadata": metadata, "spec": {"containers": [container], "resourceClaims": claims}}


def with_surroundings(world: Objects, do: Callable[[ReviewContext], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        around = ReviewContext(world)
        running = asyncio.create_task(around.run())
        try:
            nodes = any(plural == "nodes" for plural, *_ in world.kept)
            for _ in range(1000):
                if not around.unready() and not (nodes and around.largest() is None):
                    break
                await asyncio.sleep(0)
            return await do(around)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    return asyncio.run(work())


def reviewed(
    world: Objects,
    one: dict[str, Any],
    resource: str = "pods",
    *,
    may_patch: bool = True,
    floor: Settings | None = None,
) -> dict[str, Any]:
    """The response of a review."""
    request = {
        "uid": "u", "operation": "CREATE", "resource": {"resource": resource}, "object": one,
        "namespace": NAMESPACE, "userInfo": {"username": "somebody"},
    }  # fmt: skip

    async def ask(around: ReviewContext) -> Any:
        body = json.dumps({"request": request}).encode()
        return await Reviewer(around, floor=floor).answer(body, may_patch=may_patch)

    return with_surroundings(world, ask)["response"]


def refusal(*arguments: Any, **more: Any) -> str:
    return reviewed(*arguments, **more).get("status", {}).get("message", "")
