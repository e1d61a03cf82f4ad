// Tokens as they were sampled: colored by log-prob, or by who wrote them. Values that files do not hold are
// not shown as anything.

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

export function tokenText({ id, text, owner, logprob }, show) {
  return h("p", { class: `tokens by-${show}` }, id.map((one, index) => {
    const value = Number(logprob[index]);
    const isSampled = logprob[index] !== null;
    const shown = text === null ? ` ${one}` : text[index];
    const title = `token ${one}` + (isSampled
      ? `, log-prob ${number(logprob[index])}, probability ${number(Math.exp(value), 3)}` : `, ${owner[index]}`);
    const kind = show === "owner" ? owner[index] : isSampled ? `level-${level(value)}` : "unsampled";
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
  if (show === "owner") {
    return h("p", { class: "legend" }, Object.entries(OWNERS).map(([key, text]) => h("span", { class: `token ${key}` }, text)));
  }
  return null;
}
