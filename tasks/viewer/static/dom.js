// Elements from values. Texts become text nodes and nothing else: what an episode holds is hostile.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, text]) => element.style.setProperty(key, text));
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
}

// Characters that control the direction of a text would turn the rest of its line around.
const visible = (text) =>
  text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (mark) => `[U+${mark.charCodeAt(0).toString(16).toUpperCase()}]`);

export function replace(element, ...children) {
  const nodes = document.createDocumentFragment();
  append(nodes, children);
  element.replaceChildren(nodes);
}

// `names`: of the columns, as texts or as header cells.
export const table = (names, rows, { className = "plain", boxClass = "scroll" } = {}) =>
  h("div", { class: boxClass }, h("table", { class: className },
    h("thead", {}, h("tr", {}, names.map((name) => (name instanceof Node ? name : h("th", {}, name))))), h("tbody", {}, rows)));

export const pairs = (entries, className = null) =>
  h("dl", { class: className }, entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

// A value of JSON, a string without its quotes.
export const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

// A text of any length: beyond `limit` characters or `lines` lines the rest is one click away.
export function longText(text, { limit = 6000, lines = 60, tail = false, className = "" } = {}) {
  const box = h("pre", { class: `text ${className}` });
  text = visible(text);
  const all = text.split("\n");
  // Not for the sake of a few lines.
  if (text.length <= limit * 1.2 && all.length <= lines * 1.4) {
    box.append(text);
    return box;
  }
  const few = tail ? all.slice(-lines).join("\n").slice(-limit) : all.slice(0, lines).join("\n").slice(0, limit);
  const rest = text.length - few.length;
  const button = h("button", {
    type: "button", class: "more",
    onclick: () => box.replaceChildren(text),
  }, `show ${count(rest)} more characters${tail ? " before this" : ""}`);
  if (tail) box.append(button, "\n", few);
  else box.append(few, "\n", button);
  return box;
}

export const count = (number) => Math.round(number).toLocaleString("en-US");
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// A number as recorded, short: 0.5, 1, −1.2e-7, and all digits before the point. Files may hold "NaN" and "Infinity", which come as texts.
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const text = Number.isInteger(value) ? String(value)
    : Math.abs(value) < 1e-3 ? value.toExponential(1).replace(".0e", "e")
    : Math.abs(value) >= 10 ** digits ? String(Math.round(value)) : Number(value.toPrecision(digits)).toString();
  return text.replaceAll("-", "−");
}

// A parameter's value.
export const parameter = (value) => (typeof value === "number" ? number(value, 6) : plain(value));

// A number with `digits` decimals, for a column of its kind.
export const fixed = (value, digits) =>
  (typeof value === "number" ? value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−") : "–");

// As Python rounds, so that the report has the same: 6.25 is 6.2.
const tenths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1, useGrouping: false, roundingMode: "halfEven" });
export const hundredfold = (rate) => tenths.format(100 * rate);
export const percent = (rate) => (typeof rate === "number" ? `${hundredfold(rate)}%` : "–");

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0, useGrouping: false, roundingMode: "halfEven" });
const two = (number) => String(number).padStart(2, "0");
const longDuration = (total) => {
  const minutes = Math.floor(total / 60);
  return minutes < 60 ? `${minutes} min ${two(total % 60)} s` : `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
};

// As the report has it, but short times to the microsecond.
export function seconds(value) {
  if (typeof value !== "number") return "–";
  if (value >= 59.95) return longDuration(Number(whole.format(value)));
  if (value >= 0.1) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return value >= 0.001 ? `${Math.round(1e3 * value)} ms` : `${Math.round(1e6 * value)} µs`;
}

export function ago(at) {
  const passed = Date.now() / 1000 - at;
  if (!(at > 0)) return "–";
  if (passed < 60) return `${Math.max(0, Math.round(passed))} s ago`;
  if (passed < 3600) return `${Math.round(passed / 60)} min ago`;
  if (passed < 172800) return `${Math.round(passed / 3600)} h ago`;
  return new Date(at * 1000).toISOString().slice(0, 10);
}
