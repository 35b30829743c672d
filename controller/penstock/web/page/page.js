// Connection to the server, and what depends on it: whether the page is live, and its filter.
import { drawHistory } from "./history.js";
import { drawLists } from "./lists.js";
import { choose, drawMap, element, mark } from "./map.js";

const SILENT_MS = 12000; // the server speaks every five seconds
const AGAIN_MS = 2000;
const AGAIN_FULL_MS = 10000;
const TYPED_MS = 300;

const at = (id) => document.getElementById(id);
let stream = null;
let heardMs = 0; // of this machine's clock
let aheadMs = 0; // how far this machine's clock is ahead of the server's
let state = null;
let page = 0;
let timer = 0;
let againTimer = 0;

function connect() {
  clearTimeout(againTimer);
  if (stream) stream.close();
  const query = new URLSearchParams({ find: at("find").value, page: String(page) });
  const opened = (stream = new EventSource(`events?${query}`));
  const on = (kind, act) =>
    opened.addEventListener(kind, (event) => {
      if (opened !== stream) return;
      aheadMs = Date.now() - Number(event.lastEventId);
      act(event.data);
    });
  on("state", (data) => {
    state = JSON.parse(data);
    heard();
    draw();
  });
  on("alive", heard);
  on("problem", (data) => {
    const problem = JSON.parse(data);
    notLive(`${problem.what}: ${problem.why}`);
  });
  on("full", (data) => {
    notLive(`${data} other pages are open, which is the most that the server serves. Close one.`);
    again(AGAIN_FULL_MS);
  });
  opened.onerror = () => {
    if (opened !== stream) return;
    notLive("The server does not answer. This page tries again every two seconds.");
    again(AGAIN_MS);
  };
}

function again(ms) {
  stream.close();
  clearTimeout(againTimer);
  againTimer = setTimeout(connect, ms);
}

function heard() {
  heardMs = Date.now();
  at("live").className = "is-live";
  at("live").textContent = "live";
  at("problem").hidden = true;
  document.body.classList.remove("is-stale");
}

function notLive(why) {
  const since = heardMs ? `not live since ${new Date(heardMs).toLocaleTimeString()}` : "not live";
  at("live").className = "is-not-live";
  if (at("live").textContent !== since) at("live").textContent = since;
  if (at("problem").textContent !== why) at("problem").textContent = why;
  at("problem").hidden = false;
  document.body.classList.toggle("is-stale", Boolean(state));
}

function draw() {
  document.title = `${state.title} – Penstock`;
  at("title").textContent = state.title;
  at("subtitle").textContent = state.subtitle;
  at("totals").replaceChildren(...state.totals.map(tile));
  const are = state.found === 1 ? "1 node" : `${state.found.toLocaleString()} nodes`;
  at("map-title").textContent = state.find ? `${are} with “${state.find}”` : are;
  page = state.page;
  at("pages").hidden = state.pages < 2;
  at("where").textContent = `page ${page + 1} of ${state.pages}`;
  at("before").disabled = page === 0;
  at("after").disabled = page + 1 >= state.pages;
  at("note").textContent = state.note;
  at("find").placeholder = state.finds;
  drawMap(at("nodes"), state);
  drawLists(at("lists"), at("others"), state);
  drawHistory(at("history"), state.history, Date.now() - aheadMs);
  mark();
  ages();
}

function tile(total) {
  const tiled = element("div", total.warns ? "warns" : "");
  const value = element("dd", "value", total.value.toLocaleString());
  if (total.of !== undefined) value.append(element("span", "of", ` of ${total.of.toLocaleString()}`));
  tiled.append(element("dt", "", total.label), value, element("dd", "more", total.more));
  return tiled;
}

function ages() {
  for (const one of document.querySelectorAll("[data-since]")) {
    const seconds = Math.max(0, (Date.now() - aheadMs - Number(one.dataset.since)) / 1000);
    const text = `for ${ageText(seconds)}`;
    if (one.textContent !== text) one.textContent = text;
  }
}

function ageText(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

function look(number) {
  page = number;
  connect();
}

at("find").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => look(0), TYPED_MS);
});
at("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  look(0);
});
at("before").addEventListener("click", () => look(page - 1));
at("after").addEventListener("click", () => look(page + 1));
document.addEventListener("click", (event) => {
  const holder = event.target.closest("[data-holder]");
  if (holder) choose(holder.dataset.holder);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null);
});
setInterval(() => {
  ages();
  if (stream.readyState === EventSource.OPEN && heardMs && Date.now() - heardMs > SILENT_MS) {
    if (at("problem").hidden) notLive("The server is silent. This page tries again.");
    again(AGAIN_MS);
  }
}, 1000);
connect();
