"""Records of a pool's applications and cards: from plain JSON values to the pool's own types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.scheduling.blocks.application import Application
from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def card_of(plain: Mapping[str, Any]) -> Card:
    """The card in a record; keys that a later release wrote are ignored."""
    return Card(**_known(Card, plain))


def application_of(plain: Mapping[str, Any]) -> Application:
    """The application in a record; keys that a later release wrote are ignored."""
    known = _known(Application, plain)
    known["claim"] = Claim(**_known(Claim, known["claim"]))
    for name in ("runs", "source", "kept_runs"):
        known[name] = _runs(known.get(name, ()))
    for name in ("home", "kept_bytes"):
        known[name] = tuple(tuple(one) for one in known.get(name, ()))
    known["blockers"] = frozenset(known.get("blockers", ()))
    return Application(**known)


def _runs(plain: Iterable[Iterable[int]]) -> tuple[Run, ...]:
    return tuple(Run(*one) for one in plain)


def _known(kind: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined] # a dataclass
    return {name: value for name, value in plain.items() if name in fields}
