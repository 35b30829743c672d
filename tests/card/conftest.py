"""Three unlike cards, each a worker process on the CPU, for all tests of a process."""

import os

import pytest
from tests.card.support.served import Served

from penstock.card import load
from penstock.card.credentials import write

CARDS = "cpu=1,cpu=2,cpu=4"

# Test modules name the device when they are imported. Only a program with cards has it.
with pytest.MonkeyPatch.context() as environment:
    environment.setenv("PENSTOCK_CARD", CARDS)
    load()


def pytest_configure(config):
    # Tests look at results, and their lines may be slow; those of warnings take this back.
    config.addinivalue_line("filterwarnings", "ignore::penstock.card.PenstockCardWarning")


@pytest.fixture(scope="session")
def cards():
    import torch

    from penstock.card.device.start import session

    os.environ["PENSTOCK_CARD"] = CARDS
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


@pytest.fixture(scope="session")
def credentials(tmp_path_factory):
    folder = tmp_path_factory.mktemp("credentials") / "keys"
    write(folder, 2)
    return folder


@pytest.fixture
def serving(credentials):
    started = []

    def serve(folder=credentials / "worker", **options):
        started.append(Served(folder, **options))
        return started[-1]

    yield serve
    for one in started:
        one.end()
