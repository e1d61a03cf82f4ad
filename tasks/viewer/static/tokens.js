// Tokens as they were sampled: colored by log-prob, by who wrote them, or by a number of the update. Values that
// files do not hold are not shown as anything.

import { h, number } from "./dom.js";

const OWNERS = {
  policy: "sampled by the policy (mask 1: trained on, if the episode is)",
  environment: "the environment's and the tools' words (mask 0)",
  template: "the chat template's own tokens (mask 0)",
  context: "not the policy's (mask 0); the file does not say which are the environment's words",
  prompt: "prompt (mask 0)",
};

// 0 for a probability of at least 50%, then 1 from 10%, 2 from 1%, 3 below.
const level = (logprob) => (logprob > -0.6932 ? 0 : logprob > -2.3026 ? 1 : logprob > -4.6052 ? 2 : 3);

// Of numbers that grow: the limits of their levels, and what these are called.
const size = (value, limits) => limits.filter((limit) => value >= limit).length;

const UPDATE = {
  advantage: {
    name: "advantage",
    kind: (value) => (Math.abs(value) < 0.05 ? "even" : `${value > 0 ? "gain" : "loss"}-${Math.abs(value) < 1 ? 1 : 2}`),
    legend: ["advantage: ", ["loss-2", "−1 or less"], ["loss-1", "below 0"], ["even", "about 0"], ["gain-1", "above 0"], ["gain-2", "1 or more"]],
  },
  log_ratio: {
    name: "trainer’s log-prob − sampler’s",
    kind: (value) => `level-${size(Math.abs(value), [0.01, 0.1, 1])}`,
    legend: ["trainer’s log-prob − sampler’s, either way: ", ["level-0", "below 0.01"], ["level-1", "0.01–0.1"], ["level-2", "0.1–1"], ["level-3", "1 or more"]],
  },
  entropy: {
    name: "entropy",
    kind: (value) => `level-${size(value, [0.1, 0.5, 1])}`,
    legend: ["entropy, nats: ", ["level-0", "below 0.1"], ["level-1", "0.1–0.5"], ["level-2", "0.5–1"], ["level-3", "1 or more"]],
  },
};

export function tokenText(columns, show) {
  const { id, text, owner, logprob } = columns;
  return h("p", { class: `tokens by-${show}` }, id.map((one, index) => {
    const value = Number(logprob[index]);
    const isSampled = logprob[index] !== null;
    const shown = text === null ? ` ${one}` : text[index];
    const numbers = Object.entries(UPDATE).filter(([key]) => (columns[key]?.[index] ?? null) !== null);
    const title = `token ${one}` + (isSampled
      ? `, log-prob ${number(logprob[index])}, probability ${number(Math.exp(value), 3)}` : `, ${owner[index]}`)
      + numbers.map(([key, { name }]) => `, ${name} ${number(columns[key][index])}`).join("");
    const shownNumber = numbers.find(([key]) => key === show);
    const kind = show === "owner" ? owner[index]
      : UPDATE[show] ? shownNumber ? UPDATE[show].kind(Number(columns[show][index])) : "unsampled"
      : isSampled ? `level-${level(value)}` : "unsampled";
    return h("span", { class: `token ${kind}`, title }, visible(shown));
  }));
}

// A token that cannot be seen is shown as a mark; line ends keep their effect.
const visible = (text) => (text === "" ? "·" : text.replace(/\n/g, "↵\n"));

export function legend(show) {
  if (show === "logprob") {
    return h("p", { class: "legend" }, "probability of the token where it was sampled: ",
      ["50% or more", "10–50%", "1–10%", "below 1%"].map((text, index) => h("span", { class: `token level-${index}` }, text)),
      h("span", { class: "token unsampled" }, "not sampled"));
  }
  if (UPDATE[show]) {
    const [title, ...kinds] = UPDATE[show].legend;
    return h("p", { class: "legend" }, title, kinds.map(([kind, text]) => h("span", { class: `token ${kind}` }, text)),
      h("span", { class: "token unsampled" }, "not sampled"));
  }
  if (show === "owner") {
    return h("p", { class: "legend" }, Object.entries(OWNERS).map(([key, text]) => h("span", { class: `token ${key}` }, text)));
  }
  return null;
}
