// Map of nodes: a strip a card, in which each interval has the colour and letter of its holder.
// Text of users reaches the page by textContent alone, so that it never becomes markup.
const SVG = "http://www.w3.org/2000/svg";
const HUES = 12;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

const signs = new Map(); // by application: its letter and hue, which stay while it is shown
const drawn = new Map(); // by node: what was drawn of it, and its element
let chosen = null;

export function element(tag, className = "", text = null) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
}

export function svg(tag, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}

// The letter and hue of an application. Letters double (AA, BB …) once all are taken.
export function signOf(name) {
  return signs.get(name) ?? { letter: "·", hue: 0 };
}

function assign(names) {
  for (const name of signs.keys()) if (!names.includes(name)) signs.delete(name);
  const taken = new Set([...signs.values()].map((one) => one.number));
  let number = 0;
  for (const name of names) {
    if (signs.has(name)) continue;
    while (taken.has(number)) number += 1;
    taken.add(number);
    const letter = LETTERS[number % LETTERS.length].repeat(1 + Math.floor(number / LETTERS.length) % 2);
    signs.set(name, { number, letter, hue: number % HUES });
  }
}

export function key(name, holds) {
  const sign = signOf(name);
  const made = element("span", holds ? `key h${sign.hue}` : "key none", holds ? sign.letter : "–");
  made.setAttribute("aria-hidden", "true");
  return made;
}

export function drawMap(into, state) {
  assign(state.names);
  const names = new Set();
  const nodes = state.nodes.map((node) => {
    names.add(node.name);
    const holders = node.zones.flatMap((zone) => zone.cards.flatMap((card) =>
      card.bars.flatMap((bar) => bar.held.map(([, , at]) =>
        at < 0 ? 0 : [state.names[at], state.phases[at], signOf(state.names[at]).letter]))));
    const text = JSON.stringify([node.state, node.note, node.figures, node.zones.map((zone) => [
      zone.kind, zone.cards.map((card) => [card.title, card.note, card.bars.map((bar) => [
        bar.label, bar.size, bar.held.map(([first, last, at, share]) => [first, last, at < 0, share]),
      ])]),
    ]), holders]);
    const before = drawn.get(node.name);
    if (before && before.text === text) return before.made;
    const made = nodeElement(node, state);
    drawn.set(node.name, { text, made });
    return made;
  });
  for (const name of drawn.keys()) if (!names.has(name)) drawn.delete(name);
  if (nodes.length !== into.children.length || nodes.some((one, at) => into.children[at] !== one)) {
    into.replaceChildren(...(nodes.length ? nodes : [element("p", "empty",
      state.find ? `Nothing has that in its name: ${state.finds}.` : "There is no node yet.")]));
  }
}

// Makes an application stand out; the same one again, or null: none.
export function choose(name) {
  chosen = name === chosen ? null : name;
  mark();
}

export function mark() {
  const isThere = chosen !== null && signs.has(chosen);
  document.body.classList.toggle("choosing", isThere);
  for (const one of document.querySelectorAll(".strip svg[data-holder]")) {
    one.classList.toggle("chosen", isThere && one.dataset.holder === chosen);
  }
  for (const one of document.querySelectorAll("button.name")) {
    one.setAttribute("aria-pressed", String(one.dataset.holder === chosen));
  }
}

function nodeElement(node, state) {
  const made = element("article", "node");
  const head = element("div", "bar");
  const name = element("h3", "", node.name);
  head.append(name);
  if (node.state !== "there") head.append(element("span", `state ${node.state}`, node.state));
  head.append(element("span", "figures", node.figures));
  made.append(head);
  if (node.note) made.append(element("p", "note", node.note));
  for (const zone of node.zones) {
    const shown = element("div", "zone");
    const cards = element("div", "cards");
    cards.append(...zone.cards.map((card) => cardElement(card, state)));
    shown.append(element("h4", "", zone.kind), cards);
    made.append(shown);
  }
  return made;
}

function cardElement(card, state) {
  const made = element("div", card.bars.length ? "card" : "card left-out");
  const caption = element("div", "caption");
  const title = element("span", "title", card.title);
  title.title = card.title;
  caption.append(title, element("span", "note", card.note));
  made.append(caption, ...card.bars.map((bar) => strip(bar, card, state)));
  return made;
}

function strip(bar, card, state) {
  const made = svg("svg", { class: "strip", role: "img" });
  const percent = (units) => `${(100 * units) / bar.size}%`;
  made.append(svg("rect", { class: "ground", width: "100%", height: "100%" }));
  const words = [];
  for (const [first, last, at, share] of bar.held) {
    const name = at < 0 ? `${share} applications` : state.names[at];
    const phase = at < 0 ? "running" : state.phases[at];
    const size = last - first + 1;
    const where = size > 1 ? `${first}-${last}` : String(first);
    const used = at >= 0 && share !== null ? `, uses ${Math.round(100 * share)} %` : "";
    const word = `${name}: ${where}${phase === "running" ? "" : `, ${phase}`}${used}`;
    words.push(word);
    const place = { x: percent(first - bar.first), width: percent(size), height: "100%" };
    const box = svg("svg", place);
    box.append(svg("title", {}, word), ...interval(at < 0 ? null : name, phase, share, name));
    if (at >= 0) box.dataset.holder = name;
    made.append(box);
  }
  made.setAttribute("aria-label", `${card.title}, ${bar.label}, ${card.note}. ${words.join("; ")}`);
  const ground = svg("title", {}, `${bar.label}, ${card.note}`);
  made.firstChild.append(ground);
  return made;
}

function interval(name, phase, share, label) {
  const sign = name === null ? null : signOf(name);
  const full = { x: "0", y: "0", width: "100%", height: "100%" };
  const parts = [svg("rect", { ...full, class: sign ? `held h${sign.hue}` : "held many" })];
  if (sign && phase !== "running") parts.push(svg("rect", { ...full, class: "hatched" }));
  if (sign && share !== null) {
    const width = `${Math.min(100, 100 * share)}%`;
    parts.push(svg("rect", { x: "0", y: "78%", width, height: "22%", class: "used" }));
  }
  const text = sign ? `${sign.letter} ${label}` : label;
  parts.push(svg("text", { x: "5", y: "50%", dy: "0.35em", class: sign ? "" : "many" }, text));
  return parts;
}

// The pattern of applications that do not run: a sign beside the colour.
const pattern = svg("pattern", { id: "hatch", width: "6", height: "6", patternUnits: "userSpaceOnUse" });
pattern.append(svg("path", { d: "M-1 1l2 -2M0 6l6 -6M5 7l2 -2" }));
const definitions = svg("svg", { width: "0", height: "0", "aria-hidden": "true", class: "definitions" });
definitions.append(svg("defs"));
definitions.firstChild.append(pattern);
document.body.append(definitions);
