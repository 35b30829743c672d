// Chart of the last hour; the last sample has no time, and is of now. Lines differ in colour and in their dashes.
import { element, svg } from "./map.js";

const HOUR_MS = 3600 * 1000;
const LEAST_MS = 120 * 1000; // shown of a history that has just begun
const WIDTH = 600;
const HEIGHT = 110;
let before = "";

export function drawHistory(into, history, nowMs) {
  const endMs = Math.ceil(nowMs / 10000) * 10000;
  const text = JSON.stringify([history, endMs]);
  if (text === before) return;
  before = text;
  const { samples, series, unit } = history;
  const spanMs = Math.min(HOUR_MS, Math.max(LEAST_MS, endMs - (samples[0][0] ?? endMs)));
  const most = Math.max(1, history.most, ...samples.flatMap((one) => one.slice(1)));
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const last = samples.at(-1);
  const words = series.map((name, at) => `${name} ${last[at + 1]}`).join(", ");
  chart.setAttribute("aria-label", `${unit} in the last hour; now: ${words}`);
  chart.append(svg("rect", { class: "ground", width: WIDTH, height: HEIGHT }));
  series.forEach((_, at) => {
    const points = samples.map((one) => {
      const x = one[0] === null ? WIDTH : WIDTH * (1 - (endMs - one[0]) / spanMs);
      return `${x.toFixed(1)},${(HEIGHT * (1 - one[at + 1] / most)).toFixed(1)}`;
    });
    chart.append(svg("polyline", { class: `s${at}`, points: points.join(" ") }));
  });
  const began = spanMs < HOUR_MS ? `${Math.round(spanMs / 60000)} min ago` : "1 h ago";
  const axis = element("div", "axis");
  axis.append(element("span", "", began), element("span", "", "now"));
  const top = element("div", "axis");
  top.append(element("span", "", `${most.toLocaleString()} ${unit}`));
  const legend = element("ul");
  series.forEach((name, at) => {
    const one = element("li");
    const sample = svg("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" });
    sample.append(svg("line", { class: `s${at}`, x1: 0, x2: 26, y1: 4, y2: 4 }));
    one.append(sample, `${name} ${last[at + 1].toLocaleString()}`);
    legend.append(one);
  });
  into.replaceChildren(top, chart, axis, legend);
}
