"""AdmissionReview requests: dispatch to the reviews, and responses to the API server."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from penstock.kube.objects.names import SCHEDULER
from penstock.kube.webhook.claim_review import review_claim
from penstock.kube.webhook.pod_review import review_binding, review_change, review_new
from penstock.kube.webhook.resize_review import review_resize
from penstock.kube.webhook.template_review import TEMPLATED, review_template
from penstock.kube.webhook.verdict import Verdict
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.kube.objects.api_client import Object
    from penstock.kube.webhook.review_context import ReviewContext
    from penstock.policy.resolve import Settings

    Further = Callable[[Object], Awaitable[list[str]]]

MOST_WARNING = 250  # characters; the API server cuts all warnings together at 4096
ALLOWED_UNASKED = frozenset({"DELETE", "CONNECT"})


class Reviewer:
    """Reviews Pods, Bindings, claims and their templates.

    `further` lists additional checks, such as the check of a namespace's cap, which return the
    reasons against a request. They run after all other checks have passed, on the request
    (`namespace`, `resource`, `object`, `userInfo`, `dryRun`, …) as it will be stored. If one of
    them raises `PenstockError`, the request is refused with a status that allows a retry.
    """

    def __init__(
        self,
        around: ReviewContext,
        *,
        scheduler: str = SCHEDULER,
        scheduler_user: str = "",
        floor: Settings | None = None,
    ) -> None:
        """`floor` is the mildest `onExceed` that claims may set; if None, only nodes bound it."""
        self._around = around
        self._floor = floor
        self._scheduler = scheduler
        self._scheduler_user = scheduler_user
        self.further: list[Further] = []

    async def answer(self, body: bytes, *, may_patch: bool) -> Object:
        """The response to one AdmissionReview; a malformed review is refused like any other."""
        uid = ""
        try:
            request = json.loads(body)["request"]
            uid = request["uid"] if isinstance(request["uid"], str) else ""
            verdict = await self._verdict(request)
            if verdict.patch and not may_patch:
                verdict.refuse(
                    "the Pod changed after the mutating webhook completed it",
                    "an object that it refers to was created or changed meanwhile, or another "
                    "webhook changed the Pod",
                    "create the Pod again",
                )
            if not verdict.refusals and not may_patch:  # other webhooks may change a mutated object
                for ask in self.further:
                    verdict.refusals += await ask(request)
        except PenstockError as error:  # related objects or a cap's ledger are not available
            return _review(uid, Verdict([str(error)]), 503)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"the review cannot be read: {type(error).__name__}: {str(error)[:200]}"
            return _review(uid, Verdict([why]), 400)
        return _review(uid, verdict, 422)

    async def _verdict(self, request: Object) -> Verdict:
        operation = request["operation"]
        if operation in ALLOWED_UNASKED:
            return Verdict()
        what = request["resource"]["resource"], request.get("subResource") or ""
        one, user = request["object"], request["userInfo"]["username"]
        namespace = request.get("namespace") or ""
        match what:
            case ("pods", "") if operation == "CREATE":
                found = await review_new(one, namespace, self._around, self._scheduler)
            case ("pods", "binding") | ("bindings", _):
                found = review_binding(one, user, self._scheduler_user)
            case ("pods", _):
                found = review_change(request["oldObject"], one, user, self._scheduler_user)
                if not found.refusals:
                    found = await review_resize(request["oldObject"], one, namespace, self._around)
            case ("resourceclaims", _):
                found = await review_claim(one["spec"], self._around, self._floor)
            case ("resourceclaimtemplates", _):
                found = await review_claim(one["spec"]["spec"], self._around, self._floor)
            case (plural, "") if plural in TEMPLATED:
                found = await review_template(one, namespace, self._around, self._scheduler)
            case _:
                found = Verdict()
        return found


def _review(uid: str, verdict: Verdict, code: int) -> Object:
    response: Object = {"uid": uid, "allowed": not verdict.refusals}
    if verdict.refusals:
        response["status"] = {
            "code": code,
            "reason": {422: "Invalid", 503: "ServiceUnavailable"}.get(code, "BadRequest"),
            "message": "; and ".join(verdict.refusals),
        }
    elif verdict.patch:
        patch = json.dumps(verdict.patch).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if verdict.warnings:
        response["warnings"] = [one[:MOST_WARNING] for one in verdict.warnings]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
