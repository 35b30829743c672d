"""The map of a pool: what the manager knows of the nodes that a viewer asks for."""

from __future__ import annotations

import json

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.pool.support.fake_node import card
from tests.pool.support.manager_process import blocks_of, wait_until
from tests.web.support.viewer import Viewer

from penstock.model import PenstockError
from penstock.pool.manager import Manager
from penstock.pool.rpc.server import PoolServer
from penstock.pool.rpc.web_map import MOST_ROWS, NODES_A_PAGE, pool_map
from penstock.pool.settings import Settings
from penstock.pool.store import Store
from penstock.scheduling.blocks.card import Card
from penstock.web import Query


@pytest.fixture
def web_manager(make_manager):
    return make_manager("--web-address=127.0.0.1:0")


def url_of(manager):
    return manager.said("started")["web"]


def held(state):
    """The holder of each block that the map shows."""
    return {
        number: state["names"][at]
        for node in state["nodes"]
        for zone in node["zones"]
        for one in zone["cards"]
        for bar in one["bars"]
        for first, last, at, _ in bar["held"]
        for number in range(first, last + 1)
    }


def newest(manager, condition, **query):
    """The first state of a stream for which the condition holds."""
    with Viewer(url_of(manager), **query) as viewer:
        return next(state for state in viewer.states() if condition(state))


def test_the_map_shows_who_holds_which_blocks_who_waits_and_who_is_suspended(
    web_manager, make_node
):
    make_node(web_manager, "n0", [card("a", 9), card("b", 9), card("c", 20, "npu")])
    make_node(web_manager, "n1", [card("d", 5, "fpga")])
    web_manager.acquire("low", 18)
    web_manager.acquire("small", 5, kind="fpga")
    high = web_manager.claim("high", 30, priority=5)
    high.ends()
    waiting = web_manager.claim("patient", 25, wait=Duration(seconds=600))
    wait_until(lambda: web_manager.phase("patient") == "waiting")
    state = newest(web_manager, lambda one: one["lists"][0]["count"] == 1)
    assert held(state) == blocks_of(web_manager.state())
    assert {zone["kind"]: len(zone["cards"]) for zone in state["nodes"][0]["zones"]} == {
        "gpu": 2, "npu": 1,
    }  # fmt: skip
    (patient,) = state["lists"][0]["rows"]
    why = next(one.reason for one in web_manager.state().applications if one.name == "patient")
    assert patient["why"] == why
    assert ["asks for", "25 blocks"] in patient["facts"]
    (low,) = state["lists"][1]["rows"]
    assert (low["name"], low["phase"]) == ("low", "suspended")
    assert "high" in low["why"]
    assert {one["name"] for one in state["lists"][2]["rows"]} == {"high", "small"}
    totals = {one["label"]: one["value"] for one in state["totals"]}
    assert totals == {"blocks free": 8, "nodes": 2, "running": 2, "waiting": 1, "suspended": 1}
    assert state["history"]["samples"][-1] == [None, 35, 25, 18]
    waiting.cancel()


def test_the_map_follows_what_happens(web_manager, make_node):
    node = make_node(web_manager, "n0", [card("a", 9)])
    with Viewer(url_of(web_manager)) as viewer:
        states = viewer.states()
        assert held(next(states)) == {}
        web_manager.acquire("train", 4)
        state = next(one for one in states if one["phases"] == ["running"])
        assert set(held(state).values()) == {"train"}
        node.speaks = node.connects = False
        node.break_off()
        state = next(one for one in states if one["nodes"][0]["state"] == "away")
        assert state["totals"][1]["warns"]


def test_a_filter_finds_nodes_by_name_kind_and_application(web_manager, make_node):
    make_node(web_manager, "alpha", [card("a", 9)])
    make_node(web_manager, "beta", [card("b", 9, "npu")])
    web_manager.acquire("Train", 4, kind="npu")
    for find, names in {"ALPH": ["alpha"], "npu": ["beta"], "train": ["beta"], "gpu": ["alpha"],
                        "nothing": [], "": ["alpha", "beta"]}.items():  # fmt: skip
        state = newest(web_manager, lambda _: True, find=find)
        assert [one["name"] for one in state["nodes"]] == names, find


def test_a_manager_that_does_not_lead_says_so(tmp_path):
    url = f"sqlite:///{tmp_path}/pool.db"
    server = PoolServer(url, tmp_path / "pool.sock", Settings(), None, lambda *_, **__: None)
    server._thread.start()  # it runs, and has not begun to lead
    try:
        with pytest.raises(PenstockError, match="does not lead"):
            server.web_map()(Query())
    finally:
        server.stop()


def test_the_map_of_a_large_pool_has_a_bounded_size(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/pool.db")
    store.lead("test")
    manager = Manager(store, Settings())
    gib = 1 << 30
    try:
        with manager.lock:
            for at in range(NODES_A_PAGE * 2 + 7):
                cards = [Card(f"{at}-{n}", "gpu", 900.0, 80 * gib, "H200") for n in range(8)]
                manager.join(f"node-{at}", cards)
        shown = []
        for page in range(3):
            state = pool_map(manager, Query("", page))
            assert (state["found"], state["pages"]) == (NODES_A_PAGE * 2 + 7, 3)
            assert len(json.dumps(state)) < 1_000_000
            assert all(len(one["rows"]) <= MOST_ROWS for one in state["lists"])
            shown += [one["name"] for one in state["nodes"]]
        assert shown == [f"node-{at}" for at in range(NODES_A_PAGE * 2 + 7)]
        assert [one["name"] for one in pool_map(manager, Query("node-99"))["nodes"]] == ["node-99"]
    finally:
        store.close()
