// Lists of applications: who waits and why, who is suspended, who has blocks on the shown nodes.
import { element, key } from "./map.js";

let before = "";

// Those that hold blocks have much room, below the nodes; those that wait are beside them.
export function drawLists(beside, below, state) {
  const holders = new Set(state.names);
  const text = JSON.stringify([state.lists, state.names]);
  if (text === before) return;
  before = text;
  const focused = document.activeElement?.dataset?.holder;
  const sections = state.lists.map((list) => section(list, holders));
  beside.replaceChildren(...sections.filter((_, at) => state.lists[at].phase));
  below.replaceChildren(...sections.filter((_, at) => !state.lists[at].phase));
  if (focused) {
    [...document.querySelectorAll("button.name")].find((one) => one.dataset.holder === focused)?.focus();
  }
}

function section(list, holders) {
  const made = element("section", `list ${list.phase || "others"}`);
  made.append(element("h2", "", list.count ? `${list.title} (${list.count})` : list.title));
  if (!list.rows.length) {
    made.append(element("p", "empty", list.none));
    return made;
  }
  const rows = element("ul", "rows");
  rows.append(...list.rows.map((row) => item(row, list, holders)));
  made.append(rows);
  if (list.count > list.rows.length) {
    made.append(element("p", "more", `The first ${list.rows.length} of ${list.count}.`));
  }
  return made;
}

function item(row, list, holders) {
  const made = element("li");
  const first = element("div", "first");
  const name = element("button", "name", row.name);
  name.type = "button";
  name.dataset.holder = row.name;
  name.setAttribute("aria-pressed", "false");
  first.append(key(row.name, holders.has(row.name)), name);
  if (row.phase !== (list.phase || "running")) first.append(element("span", "phase", row.phase));
  if (row.since) {
    const since = element("span", "since");
    since.dataset.since = String(row.since);
    first.append(since);
  }
  made.append(first);
  if (row.why) made.append(element("p", "why", row.why));
  const facts = element("p", "facts");
  for (const [label, value] of row.facts) {
    const fact = element("span", "", `${label} `);
    fact.append(element("b", "", value));
    facts.append(fact);
  }
  made.append(facts);
  return made;
}
