// One run: what came out, the curves, evaluations, rounds and steps, each with its trajectories.

import { showActivity } from "./activity.js";
import { get } from "./api.js";
import { chart } from "./charts.js";
import { ago, count, h, number, parameter, percent, plural, replace, seconds, table } from "./dom.js";
import * as links from "./links.js";
import { stateTag } from "./rows.js";

const CHARTS = [
  ["success", "success", true], ["reward", "reward", false], ["turns", "turns per episode", false],
  ["informative_groups", "informative groups", true], ["entropy", "entropy, nats per token", false],
  ["parse_failures", "unparsed turns per episode", false], ["tokens_per_turn", "tokens per turn", false],
  ["repetition", "repetition", true], ["kl", "KL to the sampler, nats", false],
  ["rollout_probs_diff_mean", "sampler–trainer difference", false],
];

export function tabs(run, active, query = {}) {
  const list = [["overview", "Overview", links.toRun(run)], ["trajectories", "Trajectories", links.toList(run, query)],
    ["groups", "Groups", links.toGroups(run, query)]];
  return h("nav", { class: "tabs", "aria-label": "Views of the run" }, list.map(([name, text, href]) =>
    h("a", { href, "aria-current": name === active ? "page" : null }, text)));
}

export function runView(run) {
  const box = h("div");
  let shown = null;

  // The rows of the steps stay in sight: new ones come above them.
  function draw(facts) {
    const before = box.querySelector(".tall");
    const fromEnd = before?.scrollTop > 0 ? before.scrollHeight - before.scrollTop : null;
    shown = version(facts);
    replace(box, content(run, facts));
    const after = box.querySelector(".tall");
    if (fromEnd !== null && after) after.scrollTop = after.scrollHeight - fromEnd;
  }

  return {
    title: run,
    crumbs: [["runs", links.toRuns()], [run]],
    async load({ signal }) {
      const facts = await get("run", { run }, signal);
      draw(facts);
      showActivity(facts.indexing);
      return box;
    },
    async refresh() {
      const facts = await get("run", { run });
      if (version(facts) !== shown) draw(facts);
      return facts.indexing;
    },
    keys: [
      [["t"], "trajectories", () => { location.hash = links.toList(run); }],
      [["/"], "search the run", () => { location.hash = links.toList(run); }],
      [["g"], "groups", () => { location.hash = links.toGroups(run); }],
    ],
  };
}

const version = ({ generation, summary }) => `${generation} ${summary.written_at} ${summary.state}`;

function content(run, facts) {
  const { summary, series } = facts;
  const pick = (index) => { location.hash = links.toList(run, { q: `step:${series.step[index]}` }); };
  const charts = CHARTS.filter(([key]) => series[key]).map(([key, title, from0to1]) =>
    chart({ title, steps: series.step, values: series[key], from0to1, onpick: pick }));
  return [
    h("h1", {}, run, stateTag(summary)),
    h("p", { class: "fine path" }, summary.folder),
    tabs(run, "overview"),
    h("dl", { class: "facts" },
      summary.kind !== "file" && fact("success", percent(summary.success), summary.success_of),
      summary.kind === "run" && fact("step", summary.step ? `${summary.step}${summary.steps ? ` / ${summary.steps}` : ""}` : "–"),
      fact("trajectories kept", h("a", { href: links.toList(run) }, count(facts.total))),
      summary.pipeline && fact("pipeline", summary.pipeline),
      fact("last written", ago(summary.written_at))),
    problems(facts),
    charts.length > 0 && h("section", {},
      h("h2", {}, "Training"),
      h("p", {}, "Click a step to see its trajectories."),
      h("div", { class: "charts" }, charts)),
    h("div", { class: "beside" }, evaluations(run, facts), rounds(run, facts)),
    Object.keys(summary.changed).length > 0 && h("section", {},
      h("h2", {}, "Changed parameters"),
      h("p", {}, "Compared with pipelines.yaml when the run was started."),
      h("table", { class: "plain" }, h("tbody", {}, Object.entries(summary.changed).map(([key, [before, after]]) =>
        h("tr", {}, h("th", { scope: "row" }, h("code", {}, key)), h("td", { class: "muted" }, h("s", {}, parameter(before))),
          h("td", {}, parameter(after))))))),
    Object.keys(summary.differing).length > 0 && h("section", {},
      h("h2", {}, "Parameters that differ from other runs"),
      h("p", {}, `Compared with the listed runs of ${summary.pipeline}, as far as they are recorded.`),
      h("table", { class: "plain" }, h("tbody", {}, Object.entries(summary.differing).map(([key, own]) =>
        h("tr", {}, h("th", { scope: "row" }, h("code", {}, key)), h("td", {}, parameter(own))))))),
    stepTable(run, facts),
    series.step === undefined && facts.total === 0 && h("div", { class: "empty" },
      h("h2", {}, "Nothing to see yet"),
      h("p", {}, "The run has written no training step and no trajectory. This page updates by itself.")),
  ];
}

const fact = (name, value, note) =>
  h("div", { title: note || null }, h("dt", {}, name), h("dd", {}, value), note && h("dd", { class: "note" }, note));

function problems({ summary, alerts, rewinds, unreadable }) {
  const lines = [
    ...(summary.damage ? [summary.damage] : []),
    ...alerts.slice(-5).map((alert) => `Step ${alert.step}: ${alert.text ?? alert.reason ?? JSON.stringify(alert)}`),
    ...rewinds.map((rewind) => `Training went back from step ${rewind.from_step} to ${rewind.to_step}: ${rewind.reasons}`),
  ];
  if (unreadable.total) {
    const [address, reason] = unreadable.examples[0];
    lines.push(`${plural(unreadable.total, "line")} of the files ${unreadable.total === 1 ? "is no trajectory" : "are no trajectories"}, e.g. ${address}: ${reason}`);
  }
  return lines.length > 0 && h("ul", { class: "problems" }, lines.map((line) => h("li", {}, line)));
}

function evaluations(run, { evaluation }) {
  const rows = Object.entries(evaluation).flatMap(([policy, modes]) =>
    Object.entries(modes ?? {}).map(([mode, summary]) => [policy, mode, summary]));
  return rows.length > 0 && h("section", {},
    h("h2", {}, "Evaluation"),
    h("p", {}, "Of each item the run keeps the first episode, and the first that does not solve it; the rates are of all episodes."),
    table(["policy", "sampling", "success", "reward", "turns", "episodes", "dropped"], rows.map(([policy, mode, summary]) => h("tr", {},
      h("th", { scope: "row" }, h("a", {
        href: links.toList(run, { q: [links.condition("label.policy", policy), links.condition("label.mode", mode)].join(" ") }),
      }, `${policy} training`)),
      h("td", {}, mode), h("td", {}, percent(summary.success)), h("td", {}, number(summary.reward)),
      h("td", {}, number(summary.turns)), h("td", {}, count(summary.episodes ?? 0)), h("td", {}, count(summary.dropped ?? 0))))));
}

function rounds(run, { rounds: list, kept_by_round: kept }) {
  const keptRounds = new Set(kept.map(([round]) => round));
  return list.length > 0 && h("section", {},
    h("h2", {}, "Rounds"),
    table(["round", "steps", "success, quick evaluation", "time"], list.map((round) => h("tr", {},
      h("th", { scope: "row" }, round.index + 1),
      h("td", {}, h("a", { href: links.toList(run, { q: `step:${round.first_step}..${round.last_step}` }) },
        `${round.first_step}–${round.last_step}`)),
      h("td", {}, keptRounds.has(round.index + 1)
        ? h("a", { href: links.toList(run, { q: `round:${round.index + 1}` }) }, percent(round.evaluation?.success))
        : percent(round.evaluation?.success)),
      h("td", {}, seconds(round.seconds))))));
}

function stepTable(run, { series, kept }) {
  const byStep = new Map(kept.map(([step, total]) => [step, total]));
  const index = new Map((series.step ?? []).map((step, place) => [step, place]));
  const steps = [...new Set([...byStep.keys(), ...index.keys()])].sort((a, b) => b - a);
  const at = (step, column) => series[column]?.[index.get(step)];
  return steps.length > 0 && h("section", {},
    h("h2", {}, "Steps"),
    h("p", {}, "Training keeps the trajectories of some groups of each step; the rates are of all its episodes."),
    table(["step", "kept", "episodes", "success", "reward", "turns", "horizon", h("th", { class: "wide" }, "version"), "time"], steps.slice(0, 2000).map((step) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: links.toList(run, { q: `step:${step}` }) }, step)),
      h("td", {}, h("a", { href: links.toGroups(run, { q: `step:${step}` }) }, byStep.get(step) ?? 0)),
      h("td", {}, number(at(step, "episodes"))),
      h("td", {}, percent(at(step, "success"))), h("td", {}, number(at(step, "reward"))),
      h("td", {}, number(at(step, "turns"))), h("td", {}, number(at(step, "horizon"))),
      h("td", { class: "wide" }, number(at(step, "policy_version"))), h("td", {}, seconds(at(step, "seconds"))))),
      { className: "plain sticky", boxClass: "scroll tall" }));
}
