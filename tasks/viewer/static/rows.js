// What several views say of a trajectory, in the same words and marks.

import { h, hundredfold, number, percent } from "./dom.js";
import * as links from "./links.js";

// The trajectory, or the group by its first one, that was seen last: a list marks it.
export const visited = { address: null };

// Solved or not by form and color alike.
export function outcome(row) {
  if (row.error !== null && row.stop === "error") return h("span", { class: "outcome dropped", title: row.error }, "dropped");
  return h("span", { class: `outcome ${row.success ? "solved" : "unsolved"}` }, row.success ? "solved" : "not solved");
}

export function dot(row, { run, isCurrent = false, query = {} } = {}) {
  const kind = row.stop === "error" ? "dropped" : row.success ? "solved" : "unsolved";
  return h("a", {
    class: `dot ${kind}`, href: links.toTrajectory(run, row.address, query), "aria-current": isCurrent ? "true" : null,
    title: `sample ${row.sample}: ${kind === "dropped" ? row.error : kind === "solved" ? "solved" : "not solved"}, `
      + `reward ${number(row.reward)}, ${row.turns} turns, ${stopText(row.stop)}`,
  }, h("span", { class: "hidden" }, `sample ${row.sample}, ${kind}`));
}

export const stopText = (stop) => stop.replaceAll("_", " ");

export const stepText = (row) =>
  row.step !== null ? `step ${row.step}`
    : row.round !== null ? `after round ${row.round}`
    : isFork(row) ? `fork of ${row.labels.parent} at turn ${row.labels.turn} by ${row.labels.policy}`
    : [row.phase, ...Object.values(row.labels)].join(", ");

export const isFork = (row) => row.phase === "fork" && typeof row.labels.parent === "string";

// A mean with its 95% interval: 62.5% (35.4 to 84.8).
export const rateText = (rate) =>
  rate ? `${percent(rate.mean)} (${hundredfold(rate.low)} to ${hundredfold(rate.high)})` : "–";

const STATES = {
  failed: "it ended with an error; no command works on it",
  stopped: "Ctrl-C or SIGTERM ended it; no command works on it",
  killed: "its process was killed; no command works on it",
  unfinished: "it has no final evaluation; no command works on it",
};

// Whether a command works on a run, one of its files is damaged, or how the last one ended; nothing of a run that has succeeded.
export function stateTag(run) {
  if (run.state === "running") return h("span", { class: "live", title: "a command works on it" }, "live");
  if (run.damage) return h("span", { class: "tag", title: run.damage }, "damaged");
  const state = run.state || (run.is_finished ? "" : "unfinished");
  return state && h("span", { class: "tag", title: STATES[state] }, state);
}

export const tags = (metadata) => Object.entries(metadata).map(([key, value]) =>
  h("span", { class: "tag", title: `${key}: ${value}`.slice(0, 1000) }, `${key} ${value}`.slice(0, 200)));

export const versionText = (versions) =>
  versions === null ? "–" : versions[0] === versions[1] ? String(versions[0]) : `${versions[0]}–${versions[1]}`;
