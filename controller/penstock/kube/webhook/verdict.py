"""What admission says of an object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object
    from penstock.model import PenstockError


@dataclass
class Verdict:
    """Refused for `refusals`, if there are any; else changed by `patch`, a JSON Patch."""

    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    patch: list[Object] = field(default_factory=list)

    def refuse(self, what: str, why: str, fix: str) -> None:
        """It is not to be stored."""
        self.refusals.append(f"{what}: {why}; {fix}")

    def refuse_for(self, error: PenstockError) -> None:
        """The same, as whoever found it says it."""
        self.refusals.append(str(error))


def pointer(*parts: str | int) -> str:
    """A JSON Pointer: where a patch applies."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)
