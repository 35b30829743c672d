"""Growth of a running application: on the cards that its process has already."""

from __future__ import annotations

import pytest

from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool
from penstock.scheduling.blocks.run import Run

GIB = 1 << 30


@pytest.mark.parametrize(("span", "grows"), [("card", False), ("node", False), ("pool", True)])
def test_an_application_that_is_one_process_gets_no_other_card(span, grows):
    pool = Pool()
    pool.join("node", [Card(f"card{at}", "gpu", 10, 10 * GIB) for at in range(2)], 0)
    pool.acquire("app", Claim(8, span=span), 0)
    if grows:
        assert pool.resize("app", 12, 1)[0] == (Run(1, 12),)
        return
    with pytest.raises(ValueError, match="it asks for"):
        pool.resize("app", 12, 1)
    assert pool.applications["app"].runs == (Run(1, 8),)
    assert pool.resize("app", 10, 2)[0] == (Run(1, 10),)


def test_an_application_that_shrinks_keeps_the_least_part_of_a_card_or_nothing_of_it():
    pool = Pool()
    pool.join("node", [Card(f"card{at}", "gpu", 250, 10 * GIB) for at in range(2)], 0)
    pool.acquire("app", Claim(400, span="node"), 0)
    assert pool.resize("app", 251, 1)[0] == (Run(1, 253),)
    assert pool.resize("app", 1, 2)[0] == (Run(1, 3),)
