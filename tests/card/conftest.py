"""Three unlike cards, each a worker process on the CPU, for all tests of a process."""

import os

import pytest


@pytest.fixture(scope="session")
def cards():
    os.environ["PENSTOCK_CARD"] = "cpu=1,cpu=2,cpu=4"
    import torch

    from penstock.card import load
    from penstock.card.device.start import session

    load()  # torch may have been imported before the variable was set

    torch.set_num_threads(1)
    torch.empty(1, device="penstock")
    return session()


@pytest.fixture
def eager_splits(cards):
    """Small products are split as well."""
    former, cards.planner._least_work = cards.planner._least_work, 0
    cards.plans.clear()
    yield
    cards.planner._least_work = former
    cards.plans.clear()
