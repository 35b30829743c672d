"""`penstock top --web`: the page of one machine's agent, its devices and tenants."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from selenium.webdriver.common.by import By
from tests.agent.conftest import Node
from tests.pool.support.manager_process import wait_until
from tests.web.support.browser import screen
from tests.web.support.viewer import Viewer

GIB = 1 << 30


class Top:
    """`penstock top` that serves the page."""

    def __init__(self, agent):
        command = [sys.executable, "-m", "penstock", "top", "--web-address=127.0.0.1:0"]
        self.process = subprocess.Popen(
            command,
            env=agent.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.url = re.match(r"(http://\S+) shows this node", line)[1]

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.process.communicate()
        return code


@pytest.fixture
def agent(tmp_path):
    made = Node(tmp_path / "state")
    made.start()
    yield made
    made.close()


@pytest.fixture
def top(agent):
    started = Top(agent)
    yield started
    if started.process.poll() is None:
        started.stop()


def test_the_page_shows_a_nodes_devices_and_what_each_tenant_may_use(agent, top):
    agent.tenant("train", cores=600, memory=40 * GIB)
    agent.tenant("notebook", cores=300, memory=8 * GIB)
    assert agent("suspend", "notebook").returncode == 0
    with Viewer(top.url) as viewer:
        states = viewer.states()
        state = next(one for one in states if "suspended" in one["phases"])
    (card,) = state["nodes"][0]["zones"][0]["cards"]
    time, memory = card["bars"]
    names = state["names"]
    assert (time["label"], time["size"]) == ("time", 1000)
    assert {names[at]: last - first + 1 for first, last, at, _ in time["held"]} == {
        "train": 600, "notebook": 300,
    }  # fmt: skip
    assert {names[at]: last - first + 1 for first, last, at, _ in memory["held"]} == {
        "train": 40 * 1024, "notebook": 8 * 1024,
    }  # fmt: skip
    assert [one["name"] for one in state["lists"][0]["rows"]] == ["notebook"]
    assert [one["name"] for one in state["lists"][1]["rows"]] == ["train"]
    with Viewer(top.url, find="no such thing") as viewer:
        assert next(viewer.states())["nodes"] == []


def test_the_page_of_a_node_is_drawn_and_outlives_its_agent(agent, top, browser):
    agent.tenant("train", cores=600, memory=40 * GIB)
    browser.get(top.url)

    def text(where):
        return browser.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", where
        )

    wait_until(lambda: "train" in text(".strip"))
    assert len(browser.find_elements(By.CSS_SELECTOR, ".strip")) == 2
    screen(browser, 390, 844)
    assert browser.execute_script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    agent.kill()
    wait_until(lambda: "not live" in text("#live"))
    assert "the agent does not answer" in text("#problem")
    agent.start()
    wait_until(lambda: text("#live") == "live")
    assert "train" in text(".strip")


def test_ctrl_c_ends_the_page_while_a_viewer_looks(top):
    with Viewer(top.url) as viewer:
        assert viewer.event()[0] == "state"
        assert top.stop(signal.SIGINT) == 0
