"""Filter responses: the nodes where a Pod fits, cached by request and by ledger version.

In a full cluster thousands of Pods wait, most of them alike, and the scheduler tries each of them
again and again. While nothing changes, equal requests get the cached response. After a change, only
the nodes that changed are examined again.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kube.extender.ledger import Ledger
    from penstock.kube.extender.preemption_forecast import Asker
    from penstock.scheduling.placement.feasibility import Known
    from penstock.scheduling.placement.pod_request import Request

MOST_REQUESTS = 64  # requests with cached responses, each of about 100 bytes per node
MOST_LISTS = 16  # lists of names, as a scheduler sends all nodes or those of a few selectors


@dataclass(frozen=True)
class Answer:
    """A response to the scheduler."""

    fits: bool
    body: bytes  # JSON, an ExtenderFilterResult


@dataclass
class _Remembered:
    version: int = 0  # ledger version of `known`
    known: Known = field(default_factory=dict)
    answers: dict[int, tuple[int, Answer]] = field(default_factory=dict)  # by list of names


class Answers:
    """The cached responses for one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lists: list[tuple[str, ...]] = []
        self._requests: OrderedDict[Request, _Remembered] = OrderedDict()

    def names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Interns a list of up to five thousand names, so that equal lists become one object."""
        for one in self._lists:
            if len(one) == len(names) and one == tuple(names):
                return one
        found = tuple(names)
        self._lists.append(found)
        if len(self._lists) > MOST_LISTS:
            gone = id(self._lists.pop(0))
            for remembered in self._requests.values():
                remembered.answers.pop(gone, None)
        return found

    def of(self, names: tuple[str, ...], asker: Asker) -> Answer:
        """The response that lists where the Pod fits. `names` must come from `self.names`."""
        ledger, request = self._ledger, asker.request
        if ledger.open_to(asker.uid, asker.priority):  # reserved room is free only for this Pod
            with ledger.seen_by(asker.uid, asker.priority):
                return _answer(*ledger.survey(names, request))
        remembered = self._remembered(request)
        version, answer = remembered.answers.get(id(names), (-1, None))
        if answer is not None and version == ledger.version:
            return answer
        for name in ledger.changed_since(remembered.version):
            remembered.known.pop(name, None)
        remembered.version = ledger.version
        answer = _answer(*ledger.survey(names, request, remembered.known))
        remembered.answers[id(names)] = ledger.version, answer
        return answer

    def _remembered(self, request: Request) -> _Remembered:
        found = self._requests.get(request)
        if found is None:
            found = self._requests[request] = _Remembered()
            if len(self._requests) > MOST_REQUESTS:
                self._requests.popitem(last=False)
        self._requests.move_to_end(request)
        return found


def _answer(fits: list[str], lacking: dict[str, list[str]]) -> Answer:
    """Builds the JSON text by hand, because thousands of node names need no escaping.

    Nodes that lack devices are reported as unresolvable, because the scheduler cannot count the
    room that evictions would make there.
    """
    parts = []
    for why, names in lacking.items():
        said = json.dumps(said_plainly(why))
        joint = f'":{said},"'
        parts.append(f'"{joint.join(names)}":{said}')
    there = ",".join(f'"{name}"' for name in fits)
    text = f'{{"NodeNames":[{there}],"FailedAndUnresolvableNodes":{{{",".join(parts)}}}}}'
    return Answer(bool(fits), text.encode())


def said_plainly(text: str) -> str:
    """Replaces "%", because the scheduler uses these texts as format strings."""
    return text.replace("%", " percent")
