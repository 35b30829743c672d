"""Terms annotations: mode, policy and enforcement of a Pod that requests extended resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.kube.objects.names import GRACE, MODE, ON_EXCEED, POLICY
from penstock.model import PenstockError, QuantityError, format_duration, listing
from penstock.model.quantity import parse_grace_ns
from penstock.model.terms import MODES, STEPS
from penstock.policy.resolve import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

TERMS = (MODE, POLICY, ON_EXCEED, GRACE)
_Word = TypeVar("_Word", bound=str)


def read_terms(annotations: Mapping[str, str], what: str) -> Settings:
    """The settings in a Pod's annotations, of which empty ones set nothing.

    `what` is the beginning of an error's text.

    Raises:
        PenstockError: one of the annotations is invalid.
    """
    return Settings(
        mode=_one_of(what, MODE, annotations, MODES),
        policy=annotations.get(POLICY) or None,
        measured=_one_of(what, ON_EXCEED, annotations, STEPS),
        grace_ns=_grace_ns(what, annotations),
    )


def write_terms(settings: Settings) -> dict[str, str]:
    """The annotations for `settings`, without the policy, which only the Pod's author sets."""
    given = {
        MODE: settings.mode,
        ON_EXCEED: settings.measured,
        GRACE: None if settings.grace_ns is None else format_duration(settings.grace_ns),
    }
    return {name: word for name, word in given.items() if word is not None}


def _grace_ns(what: str, annotations: Mapping[str, str]) -> int | None:
    if not annotations.get(GRACE):
        return None
    try:
        return parse_grace_ns(annotations[GRACE])
    except QuantityError as error:
        raise PenstockError(what, f"{GRACE}: {error}", "write a time such as 30s") from error


def _one_of(
    what: str, name: str, annotations: Mapping[str, str], words: tuple[_Word, ...]
) -> _Word | None:
    said = annotations.get(name)
    if not said:
        return None
    for word in words:
        if said == word:
            return word
    raise PenstockError(what, f"{name}: {said[:60]!r} is invalid", f"write one of {listing(words)}")
