"""The page in a real browser: what a person sees, on a wide screen and on a phone."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

import pytest
from google.protobuf.duration_pb2 import Duration
from selenium.webdriver.common.by import By
from tests.pool.support.fake_node import card
from tests.pool.support.manager_process import wait_until
from tests.web.support.browser import screen
from tests.web.support.sources import state

from penstock.model import PenstockError
from penstock.web import applications_data
from penstock.web import states as states_module

PHONE = (390, 844)
HOSTILE = '<img src=x onerror="document.body.id=1"><script>document.body.id=2</script>'


def text(browser, where="body"):
    """The text that is seen at the first element; "" if there is none."""
    return browser.execute_script(
        "const one = document.querySelector(arguments[0]);"
        "return one ? one.innerText ?? one.textContent : ''", where
    )  # fmt: skip


def count(browser, where):
    return len(browser.find_elements(By.CSS_SELECTOR, where))


def look(browser, url):
    browser.get(url)
    wait_until(lambda: text(browser, "#live") == "live" and count(browser, "#map h3"))
    return browser


def sideways(browser):
    """By how many pixels the page is wider than the screen."""
    return browser.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


# A real pool


def test_the_page_shows_a_pool_live_and_says_since_when_it_is_not(browser, make_manager, make_node):
    manager = make_manager("--web-address=127.0.0.1:0")
    url = manager.said("started")["web"]
    other = card("b", 20, "npu")
    other.model = "other"  # suspended applications resume on cards of the same model alone
    make_node(manager, "alpha", [card("a", 9), other])
    manager.acquire("background", 9, kind="gpu")
    look(browser, url)
    wait_until(lambda: "background" in text(browser, ".strip"))
    manager.acquire("urgent", 8, kind="gpu", priority=3)
    claim = manager.claim("patient", 25, wait=Duration(seconds=600))
    wait_until(lambda: "patient" in text(browser, ".list.waiting"))
    wait_until(lambda: "background" in text(browser, ".list.suspended"))
    assert "25 blocks" in text(browser, ".list.waiting .why")
    assert "urgent" in text(browser, ".list.suspended .why")
    wait_until(lambda: "urgent" in text(browser, ".strip"))
    assert [one.text for one in browser.find_elements(By.CSS_SELECTOR, "h4")] == ["gpu", "npu"]
    assert count(browser, "#history polyline") == 3

    browser.expected_complaints = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
    manager.stop()
    wait_until(lambda: text(browser, "#live").startswith("not live since"))
    assert "does not answer" in text(browser, "#problem")
    manager.options = (f"--web-address=127.0.0.1:{urlsplit(url).port}",)
    manager.start()
    wait_until(lambda: text(browser, "#live") == "live")
    assert not browser.find_element(By.ID, "problem").is_displayed()
    claim.cancel()


# What a browser draws


def test_names_of_hostile_users_are_only_text(browser, serve):
    row = {"name": HOSTILE, "phase": HOSTILE, "why": HOSTILE, "facts": [[HOSTILE, HOSTILE]],
           "since": 1}  # fmt: skip
    made = state(
        (HOSTILE,), (HOSTILE,), nodes=(HOSTILE,), title=HOSTILE, subtitle=HOSTILE, note=HOSTILE,
        lists=[applications_data(HOSTILE, "waiting", 1, [row], "")],
    )  # fmt: skip
    made["nodes"][0].update(state=f"x {HOSTILE}", note=HOSTILE, figures=HOSTILE)
    made["totals"][0].update(label=HOSTILE, more=HOSTILE)
    zone = made["nodes"][0]["zones"][0]
    zone["kind"] = zone["cards"][0]["title"] = zone["cards"][0]["note"] = HOSTILE
    look(browser, serve(lambda _: made).url)
    assert text(browser).count(HOSTILE) > 12
    assert count(browser, "img, body script") == 0
    assert browser.find_element(By.TAG_NAME, "body").get_attribute("id") == ""


def test_the_policy_of_the_page_stops_what_would_get_in_anyway(browser, serve):
    look(browser, serve(lambda _: state()).url)
    browser.expected_complaints = ("Content Security Policy",)
    browser.execute_script(
        "const one = document.createElement('div'); document.body.append(one);"
        "one.innerHTML = '<img src=x onerror=\"document.body.id=1\">';"
        "const other = document.createElement('script'); other.textContent = 'document.body.id=2';"
        "document.body.append(other)"
    )
    said = []  # the log forgets what it has told

    def is_over():
        said.extend(one["message"] for one in browser.get_log("browser"))
        return all(any(word in one for one in said) for word in ("script", "/x - Failed to load"))

    wait_until(is_over)
    assert browser.find_element(By.TAG_NAME, "body").get_attribute("id") == ""


@pytest.mark.parametrize("name", ["train", "x" * 253, "a b" * 80])
def test_a_phone_shows_the_page_without_scrolling_sideways(browser, serve, name):
    screen(browser, *PHONE)
    why = "it asks for 700 blocks; 1218 are free, 624 of them in one run"
    row = {"name": name, "phase": "waiting", "why": why, "facts": [["of", name]], "since": 1}
    lists = [applications_data("Waiting", "waiting", 1, [row], "")]
    made = state((name, "b"), nodes=(name, "n1"), subtitle=name, lists=lists)
    made["nodes"][0]["zones"][0]["cards"][0]["title"] = name
    look(browser, serve(lambda _: made).url)
    assert sideways(browser) == 0
    assert browser.find_element(By.CSS_SELECTOR, ".why").is_displayed()
    screen(browser, 320, 640)
    assert sideways(browser) == 0


def test_colour_is_not_the_only_sign(browser, serve):
    names = [f"app-{at}" for at in range(30)]
    phases = ["running", "suspending", "starting"] * 10
    look(browser, serve(lambda _: state(names, phases, size=3000)).url)
    signs = [one.text for one in browser.find_elements(By.CSS_SELECTOR, ".others .key")]
    assert len(set(signs)) == len(names)
    boxes = browser.find_elements(By.CSS_SELECTOR, ".strip svg[data-holder]")
    labels = browser.execute_script(
        "return arguments[0].map((one) => one.querySelector('text').textContent)", boxes
    )
    assert labels == [f"{sign} {name}" for sign, name in zip(signs, names, strict=True)]
    titles = browser.execute_script(
        "return arguments[0].map((one) => one.querySelector('title').textContent)", boxes
    )
    assert titles[1] == "app-1: 101-200, suspending"
    assert count(browser, ".strip rect.hatched") == phases.count("suspending") * 2
    spoken = browser.find_element(By.CSS_SELECTOR, ".strip").get_attribute("aria-label")
    assert all(title in spoken for title in titles)
    dashes = browser.execute_script(
        "return [...document.querySelectorAll('#history polyline')]"
        ".map((one) => getComputedStyle(one).strokeDasharray)"
    )
    assert len(set(dashes)) == 3


CONTRASTS = """
const channel = (one) => (one /= 255) <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
  return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
};
const contrast = (one, other) => {
  const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const behind = (one) => {
  for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
};
const found = [];
for (const one of document.querySelectorAll("body *")) {
  if (one.closest("svg") || ![...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    continue;
  const measured = contrast(getComputedStyle(one).color, behind(one));
  if (one.offsetParent) found.push([one.textContent, 4.5, measured]);
}
for (const one of document.querySelectorAll(".strip svg")) {
  const rect = getComputedStyle(one.querySelector("rect.held"));
  const text = getComputedStyle(one.querySelector("text"));
  const ground = getComputedStyle(one.closest(".strip").querySelector(".ground"));
  found.push([one.textContent, 7, contrast(rect.fill, text.fill)]);
  found.push([one.textContent + " edge", 3, contrast(rect.stroke, ground.fill)]);
}
for (const one of document.querySelectorAll("#history polyline"))
  found.push([one.getAttribute("class"), 3, contrast(getComputedStyle(one).stroke, behind(one))]);
return found;
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_edges_have_enough_contrast(browser, serve, dark):
    screen(browser, 1280, 900, dark=dark)
    names = [f"app-{at}" for at in range(12)]
    made = state(names, nodes=("n0",))
    made["nodes"][0].update(state="away", note="it is silent")
    made["totals"][0]["warns"] = True
    look(browser, serve(lambda _: made).url)
    measured = browser.execute_script(CONTRASTS)
    assert len(measured) > 50
    assert not [one for one in measured if one[2] < one[1]]


# Filter, pages, and failures


def test_a_person_filters_and_turns_pages(browser, serve):
    def source(query):
        names = [f"node-{at}" for at in range(120)]
        found = [name for name in names if query.find in name]
        page, pages, cut = query.cut(len(found), 50)
        return state(nodes=found[cut], found=len(found), page=page, pages=pages, find=query.find)

    look(browser, serve(source).url)
    assert text(browser, "#map-title") == "120 nodes"
    assert count(browser, ".node") == 50
    assert not browser.find_element(By.ID, "before").is_enabled()
    browser.find_element(By.ID, "after").click()
    wait_until(lambda: text(browser, ".node h3") == "node-50")
    browser.find_element(By.ID, "find").send_keys("node-11")
    wait_until(lambda: count(browser, ".node") == 11)
    assert text(browser, "#map-title") == "11 nodes with “node-11”"
    assert not browser.find_element(By.ID, "pages").is_displayed()
    browser.find_element(By.ID, "find").send_keys("x")
    wait_until(lambda: "Nothing has" in text(browser, "#nodes"))


def test_choosing_an_application_makes_its_blocks_stand_out(browser, serve):
    look(browser, serve(lambda _: state(("a", "b"))).url)
    chosen = "return [...document.querySelectorAll('.chosen')].map((one) => one.dataset.holder)"
    browser.find_element(By.CSS_SELECTOR, "button.name[data-holder=b]").click()
    assert browser.execute_script(chosen) == ["b"]
    button = browser.find_element(By.CSS_SELECTOR, "button.name[data-holder=b]")
    assert button.get_attribute("aria-pressed") == "true"
    browser.find_element(By.CSS_SELECTOR, "svg[data-holder=a]").click()
    assert browser.execute_script(chosen) == ["a"]
    browser.find_element(By.CSS_SELECTOR, "svg[data-holder=a]").click()
    assert browser.execute_script(chosen) == []


def test_the_page_says_why_it_shows_an_old_state(browser, serve, monkeypatch):
    monkeypatch.setattr(states_module, "PERIOD_S", 0.05)
    failing = threading.Event()

    def source(query):
        if failing.is_set():
            raise PenstockError("this manager does not lead the pool", "manager-2 leads it")
        return state(("train",))

    look(browser, serve(source).url)
    failing.set()
    wait_until(lambda: "manager-2 leads it" in text(browser, "#problem"))
    assert "not live since" in text(browser, "#live")
    assert "train" in text(browser, ".strip")
    failing.clear()
    wait_until(lambda: text(browser, "#live") == "live")
