// All runs.

import { get } from "./api.js";
import { ago, h, parameter, percent, replace } from "./dom.js";
import { sparkline } from "./charts.js";
import { toConsole, toRun } from "./links.js";
import { stateTag } from "./rows.js";

const SHOWN = 3; // parameters
const KINDS = { run: "", evaluation: "evaluation", file: "file" };

export function runsView() {
  let selected = -1, shown = "";
  const box = h("div"), body = h("tbody");
  const rows = () => [...body.children];

  function select(step) {
    const all = rows();
    if (!all.length) return;
    selected = Math.max(0, Math.min(all.length - 1, selected + step));
    all.forEach((row, index) => row.classList.toggle("selected", index === selected));
    all[selected].scrollIntoView({ block: "nearest" });
  }

  function fill(runs) {
    replace(body, runs.map((run, index) =>
      h("tr", { class: index === selected ? "selected" : null, onclick: (event) => follow(event, toRun(run.name)) },
        h("th", { scope: "row" },
          h("a", { href: toRun(run.name) }, run.name),
          KINDS[run.kind] && h("span", { class: "tag" }, KINDS[run.kind]),
          stateTag(run)),
        h("td", { class: "words wide" }, changes(run)),
        h("td", { class: "spark wide" }, sparkline(run.curve)),
        h("td", { title: run.success_of }, !run.is_finished && h("span", { class: "muted" }, `${run.success_of} `), percent(run.success)),
        h("td", {}, run.step ? `${run.step}${run.steps ? ` / ${run.steps}` : ""}` : "–"),
        h("td", {}, ago(run.written_at)))));
  }

  function draw(runs) {
    const text = JSON.stringify(runs);
    if (text === shown) {
      rows().forEach((row, index) => replace(row.lastElementChild, ago(runs[index].written_at)));
      return;
    }
    shown = text;
    const focused = body.querySelector(":focus")?.getAttribute("href");
    const chosen = rows()[selected]?.querySelector("a").getAttribute("href");
    if (chosen) selected = runs.findIndex((run) => toRun(run.name) === chosen);
    fill(runs);
    if (!runs.length) {
      replace(box, h("div", { class: "empty" },
        h("h1", {}, "No runs yet"),
        h("p", {}, "A run appears here as soon as it has written its first files. Start one with ",
          h("code", {}, "wingspan run textcraft-cpu"), ".")));
    } else if (!box.contains(body)) {
      replace(box,
        h("header", { class: "runs-head" }, h("h1", {}, "Runs"), h("a", { href: toConsole() }, "act in an environment")),
        h("div", { class: "scroll" }, h("table", { class: "list runs" },
          h("thead", {}, h("tr", {}, h("th", {}, "run"), h("th", { class: "words wide" }, "parameters that differ"),
            h("th", { class: "spark wide" }, "success by step"), h("th", {}, "success"), h("th", {}, "step"),
            h("th", {}, "written"))),
          body)));
    }
    if (focused) [...body.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
  }

  function follow(event, href) {
    if (!event.target.closest("a")) location.hash = href;
  }

  return {
    title: "Runs",
    crumbs: [],
    className: "wide-page",
    async load({ signal }) {
      draw((await get("runs", {}, signal)).runs);
      return box;
    },
    async refresh() {
      draw((await get("runs")).runs);
      return null;
    },
    keys: [
      [["j", "ArrowDown"], "next run", () => select(1)],
      [["k", "ArrowUp"], "previous run", () => select(-1)],
      [["Enter"], "open it", () => rows()[selected]?.querySelector("a").click()],
    ],
  };
}

// What tells it from the other runs of its pipeline, and what else was changed.
function changes(run) {
  const texts = [
    ...Object.entries(run.differing).map(([key, own]) => `${key} ${parameter(own)}`),
    ...Object.entries(run.changed).filter(([key]) => !(key in run.differing)).map(([key, [before, after]]) => `${key} ${parameter(before)} → ${parameter(after)}`),
  ];
  if (!texts.length) return run.pipeline ? h("span", { class: "muted" }, "none") : "";
  return h("span", { title: texts.join("\n") }, texts.slice(0, SHOWN).join(", ") + (texts.length > SHOWN ? `, ${texts.length - SHOWN} more` : ""));
}
