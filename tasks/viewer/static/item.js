// The same item over the training: all its kept trajectories by step, after each round, and in the evaluations.

import { get } from "./api.js";
import { h, number, plural, replace, table } from "./dom.js";
import * as links from "./links.js";
import { dot, stepText, tags, versionText } from "./rows.js";

export function itemView(run, { item }) {
  const box = h("div");
  let generation = null;

  function draw({ rows, generation: newest }) {
    generation = newest;
    const groups = new Map();
    for (const row of rows) {
      const name = stepText(row);
      groups.set(name, [...(groups.get(name) ?? []), row]);
    }
    const counted = rows.filter((row) => row.stop !== "error");
    const solved = counted.filter((row) => row.success);
    const byRound = rows.filter((row) => row.round !== null);
    const first = counted.find((row) => !row.success), last = solved.at(-1);
    replace(box,
      h("h1", {}, item, " ", tags(rows[0].metadata)),
      h("p", { class: "fine" }, `${plural(rows.length, "trajectory").replace("trajectorys", "trajectories")} kept, `
        + `${solved.length} solved. Training keeps some groups of each step, so steps in which the item was drawn may be missing; `
        + "the quick evaluation after each round has the same test items every time. The final evaluation keeps the first episode, "
        + "and the first that does not solve the item."),
      first && last && h("p", {}, h("a", { href: links.toSides(run, [first.address, last.address]) },
        "The first that failed and the last that succeeded, side by side")),
      byRound.length > 1 && h("p", {}, h("a", { href: links.toSides(run, byRound.map((row) => row.address)) },
        "The quick evaluations after each round, side by side")),
      table([...["when", "samples"].map((name) => h("th", { class: "words" }, name)), "solved", "mean reward", "mean turns", "version", ""],
        [...groups].map(([name, members]) => {
          const valid = members.filter((row) => row.stop !== "error");
          const mean = (key) => valid.length ? valid.reduce((sum, row) => sum + (row[key] ?? NaN), 0) / valid.length : null;
          const versions = members.map((row) => row.versions).filter(Boolean).flat();
          return h("tr", {},
            h("th", { scope: "row", class: "words" }, name),
            h("td", { class: "words" }, h("div", { class: "dots" }, members.map((row) => dot(row, { run })))),
            h("td", {}, `${valid.filter((row) => row.success).length} of ${valid.length}`),
            h("td", {}, number(mean("reward"))), h("td", {}, number(mean("turns"))),
            h("td", {}, versions.length ? versionText([Math.min(...versions), Math.max(...versions)]) : "–"),
            h("td", {}, members.length > 1 && h("a", { href: links.toGroup(run, members[0].address) }, "side by side")));
        }), { className: "list history" }));
  }

  return {
    title: `${item} · ${run}`,
    crumbs: [["runs", links.toRuns()], [run, links.toRun(run)], ["trajectories", links.toList(run, { q: links.condition("item", item) })], [item]],
    async load({ signal }) {
      draw(await get("item", { run, item }, signal));
      return box;
    },
    async refresh() {
      const state = await get("state", { run });
      if (state.generation !== generation) draw(await get("item", { run, item }));
      return state.indexing;
    },
  };
}
