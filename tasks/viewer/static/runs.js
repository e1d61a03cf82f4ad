// All runs.

import { get } from "./api.js";
import { ago, h, number, percent, plain, replace } from "./dom.js";
import { sparkline } from "./charts.js";
import { toConsole, toRun } from "./links.js";

const KINDS = { run: "", evaluation: "evaluation", file: "file" };

export function runsView() {
  let selected = -1;
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
          run.is_live && h("span", { class: "live", title: "a command works on it" }, "live")),
        h("td", { class: "words wide" }, changes(run)),
        h("td", { class: "spark wide" }, sparkline(run.curve)),
        h("td", { title: run.success_of }, percent(run.success)),
        h("td", {}, run.step ? `${run.step}${run.steps ? ` / ${run.steps}` : ""}` : "–"),
        h("td", {}, ago(run.written_at)))));
  }

  function draw(runs) {
    fill(runs);
    if (!runs.length) {
      replace(box, h("div", { class: "empty" },
        h("h1", {}, "No runs yet"),
        h("p", {}, "A run appears here as soon as it has written its first files. Start one with ",
          h("code", {}, "wingspan run textcraft-cpu"), ".")));
    } else if (!box.contains(body)) {
      replace(box,
        h("header", { class: "runs-head" }, h("h1", {}, "Runs"), h("a", { href: toConsole() }, "act in an environment")),
        h("div", { class: "scroll" }, h("table", { class: "list" },
          h("thead", {}, h("tr", {}, h("th", {}, "run"), h("th", { class: "words wide" }, "changed parameters"),
            h("th", { class: "spark wide" }, "success by step"), h("th", {}, "success"), h("th", {}, "step"),
            h("th", {}, "written"))),
          body)));
    }
  }

  function follow(event, href) {
    if (!event.target.closest("a")) location.hash = href;
  }

  return {
    title: "Runs",
    crumbs: [],
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

function changes(run) {
  const pairs = Object.entries(run.changed);
  const shown = pairs.slice(0, 2).map(([key, [before, after]]) => `${key} ${value(before)} → ${value(after)}`);
  return shown.join(", ") + (pairs.length > 2 ? `, ${pairs.length - 2} more` : "") || (run.pipeline ? h("span", { class: "muted" }, "none") : "");
}

const value = (any) => (typeof any === "number" ? number(any, 6) : plain(any));
