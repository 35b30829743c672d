"""Author warnings: likely mistakes in a Pod that is admitted anyway."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from penstock.kube.objects.names import GROUP, HELD, MODE, MODEL, PLACED, POLICY, RESIZE
from penstock.kube.objects.terms_annotations import TERMS
from penstock.model import listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KNOWN = frozenset({PLACED, HELD, RESIZE, MODEL, *TERMS})
FOR_PEOPLE = tuple(name.partition("/")[2] for name in (MODE, MODEL, POLICY, RESIZE))


def misspelt(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each unknown annotation of our group."""
    for name in sorted(annotations):
        if name.startswith(f"{GROUP}/") and name not in KNOWN:
            near = difflib.get_close_matches(name.partition("/")[2], FOR_PEOPLE, n=2)
            hint = (
                f"did you mean {' or '.join(f'{GROUP}/{one}' for one in near)}?"
                if near
                else f"known annotations are {listing([f'{GROUP}/{one}' for one in FOR_PEOPLE])}"
            )
            yield f"annotation {name} has no effect: {hint}"


def more_devices(who: str, count: int, most: int | None) -> Iterator[str]:
    """Yields a warning if no node has `count` devices. `most` is None if not known."""
    if most is not None and count > most:
        yield (
            f"{who} requests shares of {count} devices, and no node here has more than {most}: it "
            "waits for a node that has them"
        )
