"""A network that breaks between a program and a card, in network namespaces (root)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.card_link.support.cards import PATH, PROJECT
from tests.pool_nodes.support.namespaces import NAMESPACES

from penstock.card.link import EXIT_FRONT_END_GONE

pytestmark = pytest.mark.timed


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("nodes in network namespaces need root")
    if missing := [tool for tool in ("unshare", "ip", "mount") if not shutil.which(tool)]:
        pytest.skip(f"nodes in network namespaces need {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("network")
    module = "tests.card_link.support.network"
    with subprocess.Popen(
        [*NAMESPACES, sys.executable, "-m", module, str(folder)],
        cwd=PROJECT, env={**os.environ, **PATH}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            # Standard input stays open: its end would end the scenario.
            output = process.stdout.read()
            assert process.wait(40) == 0, process.stderr.read()[-3000:]
        finally:
            process.kill()
    return json.loads(output.splitlines()[-1])


def test_a_short_break_is_survived(said):
    assert (said["first"], said["short"]) == ("on", "after a short break")


def test_a_break_is_noticed_within_two_seconds_and_names_the_card(said):
    assert 1.0 < said["noticed_s"] < 2.3
    assert "card 1 (gpu 0 of node b, pid " in said["error"]
    assert "does not answer: nothing has come from it for" in said["error"]


def test_the_worker_ends_though_it_works_and_nobody_tells_it(said):
    """It sees only that nothing comes from its program any more."""
    assert said["code"] == EXIT_FRONT_END_GONE
