// Small charts of values by step, in the report's colors; values that are not recorded leave a gap, and one between two
// gaps is a point.

import { h, number, replace, svg } from "./dom.js";

const finite = (value) => typeof value === "number" && Number.isFinite(value);

function paths(values, { x, y }) {
  let text = "", isDown = false;
  values.forEach((value, index) => {
    if (!finite(value)) { isDown = false; return; }
    // `h0` is a line without a length, of which the round caps are seen.
    text += `${isDown ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}${isDown ? "" : "h0"}`;
    isDown = true;
  });
  return text;
}

export function sparkline(values, { width = 120, height = 22 } = {}) {
  if (values.filter(finite).length < 2) return "";
  const x = (index) => 1 + (index / (values.length - 1)) * (width - 2);
  const y = (value) => height - 2 - Math.max(0, Math.min(1, value)) * (height - 4);
  return svg("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": true },
    svg("path", { d: paths(values, { x, y }) }));
}

// The next round number, so that the axis says something: 1, 2, 4, 5 or 8 times a power of ten.
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].find((factor) => factor * power >= value * 0.9999) * power;
}

// One series with its axis; `onpick(index)` when a step is clicked.
export function chart({ title, steps, values, from0to1 = false, onpick }) {
  const width = 360, height = 130, left = 48, right = 8, top = 8, bottom = 20;
  const known = values.filter(finite);
  if (!known.length) return null;
  let [low, high] = from0to1 ? [0, 1] : [Math.min(0, ...known), Math.max(...known)];
  if (!from0to1) [low, high] = [low < 0 ? -ceiling(-low) : 0, high > 0 || low === 0 ? ceiling(high) : 0];
  const last = Math.max(1, steps.length - 1);
  const x = (index) => left + (index / last) * (width - left - right);
  const y = (value) => top + (1 - (value - low) / (high - low)) * (height - top - bottom);
  // 0 has its number always, others where there is room beside it.
  const ticks = [low, high > 0 ? high / 2 : low / 2, high].filter((value) => Math.abs(y(value) - y(0)) > 12).concat(0);
  const shown = from0to1 ? (value) => `${Math.round(100 * value)}%` : (value) => number(value);
  const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const dot = svg("circle", { class: "dot", r: 3, visibility: "hidden" });
  const readout = h("span", { class: "readout" });
  const newest = () => replace(readout, `${finite(values.at(-1)) ? shown(values.at(-1)) : "–"} at step ${steps.at(-1)}`);
  newest();
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect();
    const place = (((event.clientX - box.left) / box.width) * width - left) / (width - left - right);
    return Math.max(0, Math.min(steps.length - 1, Math.round(place * (steps.length - 1))));
  };
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${title} by step: ${known.length} values, the last ${number(known.at(-1))}`,
    class: onpick ? "pick" : null,
    onclick: (event) => onpick?.(nearest(event)),
    onpointermove: (event) => {
      const index = nearest(event), value = values[index];
      replace(readout, `${finite(value) ? shown(value) : "not recorded"} at step ${steps[index]}`);
      for (const [name, at] of [["x1", x(index)], ["x2", x(index)]]) cursor.setAttribute(name, at);
      cursor.setAttribute("visibility", "visible");
      dot.setAttribute("visibility", finite(value) ? "visible" : "hidden");
      if (finite(value)) { dot.setAttribute("cx", x(index)); dot.setAttribute("cy", y(value)); }
    },
    onpointerleave: () => {
      newest();
      cursor.setAttribute("visibility", "hidden");
      dot.setAttribute("visibility", "hidden");
    },
  },
    ticks.map((value) => [
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 3.5, "text-anchor": "end" }, shown(value)),
    ]),
    [...new Set([0, steps.length - 1])].map((index) =>
      svg("text", { x: x(index), y: height - 5, "text-anchor": index ? "end" : "start" }, steps[index])),
    svg("path", { class: "series", d: paths(values, { x, y }) }),
    known.length === 1 && svg("circle", { class: "dot", r: 3, cx: x(values.findIndex(finite)), cy: y(known[0]) }),
    cursor, dot);
  return h("figure", { class: "chart" }, h("figcaption", {}, h("strong", { title }, title), readout), drawing);
}
