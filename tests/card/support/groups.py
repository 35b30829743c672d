"""Groups of cards within one process, as the workers of a program have them."""

import json
from concurrent.futures import ThreadPoolExecutor

from penstock.card.worker.collectives import Group


def on_all(members, function):
    """What a function returns for each member, called for all of them at the same time."""
    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(function, members, timeout=60))


def said_on(node, said):
    """What a card has said, as if it were on the node of that number."""

    def moved(key, value):
        if "board" not in key:
            return value
        return json.dumps(json.loads(value) | {"node": [node]}).encode()

    return {key: moved(key, value) for key, value in said.items()}


def groups_on(nodes, without_board=()):
    """Groups that have met, of cards on these nodes; some may not be able to have a board."""
    groups = [Group(card, len(nodes), "127.0.0.1") for card in range(len(nodes))]
    said = {}
    for card, group in enumerate(groups):
        said |= {key: value for key, value in said_on(nodes[card], group.said()).items()
                 if card not in without_board or "board" not in key}  # fmt: skip
    on_all(groups, lambda one: one.meet(said))
    return groups
