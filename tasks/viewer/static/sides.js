// Trajectories side by side, turn beside turn, with the place where each parts from the first.

import { get } from "./api.js";
import { h, number, plural, replace } from "./dom.js";
import * as links from "./links.js";
import { observation, words } from "./trajectory.js";
import { outcome, stepText, stopText, tags, visited } from "./rows.js";

export function sidesView(run, { group, addresses, query }) {
  let sides = [], generation = null, isCut = false;
  const list = { q: query.get("q") ?? "", sort: query.get("sort") ?? "" };
  let reference = query.get("ref"), only = query.get("only") ?? "";
  const box = h("div");
  const title = group ? "group" : "side by side";
  const here = (next) => (group
    ? links.toGroup(run, group, { ...list, ref: reference, only, ...next })
    : links.toSides(run, addresses, { ...list, ref: reference, only, ...next }));

  async function read(signal) {
    const answer = await get("sides", group ? { run, group } : { run, address: addresses }, signal);
    generation = answer.generation;
    if (JSON.stringify(answer.sides) === JSON.stringify(sides)) return; // something else of the run has changed
    sides = answer.sides;
    isCut = answer.total > sides.length;
    draw();
  }

  function draw() {
    const first = sides.find((side) => side.row.address === reference) ?? sides[0];
    const all = [first, ...sides.filter((side) => side !== first)];
    const courses = only === "all" ? all.map((side) => [side]) : byCourse(all);
    const columns = courses.map((members) => ({ side: members[0], members, parting: partingTurn(first, members[0]) }));
    const rows = Math.max(0, ...columns.map(({ side }) => side.turns.length));
    const { row } = first;
    const items = new Set(sides.map((side) => side.row.item));
    const different = byCourse(all).length;
    const counted = sides.filter((side) => side.row.stop !== "error");
    replace(box,
      h("header", { class: "page-head" },
        h("h1", {}, items.size === 1 ? row.item : `${items.size} items`, group && h("span", { class: "sample" }, ` ${stepText(row)}`)),
        h("p", { class: "line" },
          items.size === 1 && tags(row.metadata),
          h("span", {}, `${counted.filter((side) => side.row.success).length} of ${counted.length} solved`),
          counted.length < sides.length && h("span", {}, `${sides.length - counted.length} dropped`),
          h("span", { title: "Actions and observations are compared; thoughts may differ." },
            different === 1 ? "all acted alike" : `${different} distinct sequences of actions`),
          isCut && h("span", {}, `the first ${sides.length} are shown`),
          items.size === 1 && h("a", { href: links.toItem(run, row.item) }, "this item over the training")),
        different < sides.length && h("div", { class: "tools" }, h("div", { class: "shown", role: "group", "aria-label": "What is shown" },
          [["", "distinct"], ["all", "all samples"]].map(([key, text]) =>
            h("button", { type: "button", "aria-pressed": String(only === key), onclick: () => setOnly(key) }, text))))),
      items.size === 1 && first.prompt.text && h("details", { class: "opening" }, h("summary", {}, `Prompt, ${plural(first.prompt.tokens, "token")}`),
        h("pre", { class: "text prompt" }, first.prompt.text)),
      h("div", { class: "sides-scroll", tabindex: 0, role: "region", "aria-label": "Trajectories side by side" },
        h("div", { class: "sides", style: { "grid-template-columns": `2.2em repeat(${columns.length}, minmax(min(82vw, 290px), 1fr))` } },
          h("div", { class: "corner" }),
          columns.map((column) => heading(column, { isFirst: column.side === first })),
          Array.from({ length: rows }, (_, turn) => [
            h("div", { class: "side-number" }, turn + 1),
            columns.map(({ side, parting }) => cell(side, turn, { parting, isFirst: side === first })),
          ]))));
  }

  function setOnly(next) {
    only = next;
    history.replaceState(null, "", here());
    draw();
  }

  function heading({ side, members, parting }, { isFirst }) {
    const { row } = side;
    return h("div", { class: "side-head" },
      h("p", {}, members.map(({ row: member }, index) => [
        index ? ", " : group ? "sample " : "",
        h("a", { href: links.toTrajectory(run, member.address, group ? {} : list) }, group ? member.sample : `${stepText(member)}, sample ${member.sample}`)]),
        " ", outcome(row)),
      h("p", { class: "fine" }, `reward ${number(row.reward)}, ${plural(row.turns, "turn")}, ${stopText(row.stop)}`),
      h("p", { class: "fine" }, isFirst ? h("strong", {}, "the others are compared with this")
        : [parting === null ? "acts alike" : `parts at turn ${parting + 1}`, " · ",
          h("button", { type: "button", class: "plain-button", onclick: () => { reference = row.address; history.replaceState(null, "", here()); draw(); } }, "compare with this")]));
  }

  function cell(side, turn, { parting, isFirst }) {
    const one = side.turns[turn];
    if (!one) {
      const isEnd = turn === side.turns.length;
      return h("div", { class: "side ended" }, isEnd && `${stopText(side.row.stop)}`);
    }
    const isSame = !isFirst && (parting === null || turn < parting);
    return h("div", { class: `side ${isSame ? "same" : ""} ${turn === parting ? "parting" : ""}` },
      words(one), observation(run, side.row.address, one, turn),
      (one.reward || one.unparsed) && h("p", { class: "numbers" }, one.reward ? h("span", { class: "reward" }, `reward ${number(one.reward)}`) : null,
        one.unparsed && h("span", { class: "flag" }, "not in the format")));
  }

  return {
    title: `${title} · ${run}`,
    className: "wide-page",
    crumbs: [["runs", links.toRuns()], [run, links.toRun(run)],
      group ? [list.q || "groups", links.toGroups(run, list)] : [list.q || "trajectories", links.toList(run, list)], [group ? `group of ${group}` : title]],
    async load({ signal }) {
      await read(signal);
      visited.address = group;
      return box;
    },
    update(next) {
      if (!group && next.getAll("at").join() !== addresses.join()) return false;
      [reference, only] = [next.get("ref"), next.get("only") ?? ""];
      draw();
      return true;
    },
    async refresh() {
      const state = await get("state", { run });
      if (state.generation !== generation) await read();
      return state.indexing;
    },
    keys: [
      [["j", "ArrowDown"], "down", () => scrollBy({ top: 200 })],
      [["k", "ArrowUp"], "up", () => scrollBy({ top: -200 })],
      [["s"], "distinct ones, or all samples", () => setOnly(only ? "" : "all")],
      [["i"], "this item over the training", () => { location.hash = links.toItem(run, sides[0].row.item); }],
    ],
  };
}

// What a turn did: thoughts aside, two turns with the same action and observation are the same.
const act = (one) => JSON.stringify([one.unparsed ? one.text : one.action, one.observation]);

// The first turn in which `side` does something else than `first`; null if they are the same to the end.
export function partingTurn(first, side) {
  const length = Math.max(first.turns.length, side.turns.length);
  for (let turn = 0; turn < length; turn++) {
    const [one, other] = [first.turns[turn], side.turns[turn]];
    if (!one || !other || act(one) !== act(other)) return turn;
  }
  return null;
}

// The trajectories that took the same course to the same end, together; in the order of their first.
function byCourse(sides) {
  const courses = new Map();
  for (const side of sides) {
    const course = JSON.stringify([side.row.item, side.row.stop, side.row.success, ...side.turns.map(act)]);
    courses.set(course, [...(courses.get(course) ?? []), side]);
  }
  return [...courses.values()];
}
