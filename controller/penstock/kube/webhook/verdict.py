"""Verdict of the webhook on an object: refusals, warnings and a patch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object
    from penstock.model import PenstockError


@dataclass
class Verdict:
    """The result of a review. An object without `refusals` is changed by `patch`, a JSON Patch."""

    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    patch: list[Object] = field(default_factory=list)

    def refuse(self, what: str, why: str, fix: str) -> None:
        """Adds a refusal: what failed, why, and what to do next."""
        self.refusals.append(f"{what}: {why}; {fix}")

    def refuse_for(self, error: PenstockError) -> None:
        """Adds the text of an error as a refusal."""
        self.refusals.append(str(error))


def pointer(*parts: str | int) -> str:
    """A JSON Pointer to the place where a patch applies."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)
