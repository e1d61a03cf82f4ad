// Trajectories, or their groups, that a query selects: search, filters, sorting; as many rows as are scrolled to.

import { showActivity } from "./activity.js";
import { get } from "./api.js";
import { count, fixed, h, number, pairs, plural, replace, seconds } from "./dom.js";
import * as links from "./links.js";
import { outcome, stepText, stopText, tags, versionText, visited } from "./rows.js";
import { tabs } from "./run.js";

const PAGE = 100;
const MAX_ROWS = 500; // in one answer
const FACET_VALUES = 8;

// Where lists were left, by their address: a list that is returned to is as it was.
const left = new Map();

export function listView(run, { kind, query }) {
  let q = query.get("q") ?? "", sort = query.get("sort") ?? "";
  let rows = [], total = 0, generation = null, selected = -1, reading = null;
  const here = (next) => (kind === "groups" ? links.toGroups : links.toList)(run, next);
  const input = h("input", {
    type: "search", value: q, id: "query", autocomplete: "off", spellcheck: "false",
    placeholder: 'success:false turns>8 "could not find"', "aria-label": "Query",
  });
  const problem = h("p", { class: "problem", role: "alert" });
  const marked = new Set(); // addresses, to be shown side by side
  const markedBox = h("span");
  const total_ = h("span", { class: "total", role: "status" });
  const sorting = h("select", { "aria-label": "Sort by", onchange: () => go({ sort: sorting.value }) }, h("option", { value: "" }, "in order"));
  const body = h("tbody");
  const head = h("thead");
  const facetBox = h("div", { class: "facets" });
  const help = h("div");
  const sentinel = h("div", { class: "sentinel" });
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) more().catch(show);
  }, { rootMargin: "600px" });

  function show(error) {
    if (error.name !== "AbortError") replace(problem, error.message);
  }

  function go(next) {
    location.hash = here({ q, sort, ...next });
  }

  function toggle(term) {
    const terms = split(q);
    go({ q: (terms.includes(term) ? terms.filter((one) => one !== term) : [...terms, term]).join(" ") });
  }

  async function readFirst(signal, limit = PAGE) {
    reading = null;
    const request = readRows(signal, limit);
    reading = request;
    try {
      const answer = await request;
      if (reading !== request) return;
      const address = rows[selected] && name(rows[selected]);
      ({ rows, total, generation } = answer);
      if (address !== undefined) selected = rows.findIndex((row) => name(row) === address);
      replace(problem);
      showActivity(answer.indexing);
      draw();
      readFacets(signal).catch(show);
      return answer.indexing;
    } catch (error) {
      if (error.status !== 400) throw error;
      [rows, total] = [[], 0];
      replace(problem, error.message);
      draw();
    } finally {
      if (reading === request) reading = null;
    }
    return null;
  }

  // The first `limit` rows, or all if there are fewer, with the other fields of the first answer: if the run grows
  // meanwhile, its older generation has the rows read again.
  async function readRows(signal, limit) {
    const all = [];
    let first = null, next;
    do {
      next = await get(kind, { run, q, sort, offset: all.length, limit: Math.min(MAX_ROWS, limit - all.length) }, signal);
      first ??= next;
      all.push(...next.rows);
    } while (next.rows.length && all.length < Math.min(limit, first.total));
    return { ...first, rows: all };
  }

  async function more() {
    if (reading || rows.length >= total || !rows.length) return;
    const request = get(kind, { run, q, sort, offset: rows.length, limit: PAGE });
    reading = request;
    try {
      const answer = await request;
      if (reading !== request) return;
      const start = rows.length;
      rows = rows.concat(answer.rows);
      body.append(...answer.rows.map((row, index) => line(row, start + index)));
    } finally {
      if (reading === request) reading = null;
    }
    watcher.unobserve(sentinel);
    watcher.observe(sentinel); // tells again if it is still in sight
  }

  async function readFacets(signal) {
    const asked = q;
    const { facets, keys, sorts, group_sorts } = await get("facets", { run, q: asked }, signal);
    if (asked !== q) return;
    const terms = split(q), focused = facetBox.querySelector(":focus")?.dataset.term;
    replace(facetBox, facets.map((facet) => facetBlock(facet, terms, toggle)),
      !facets.length && h("p", { class: "fine" }, "All that are selected are alike in what there is to filter by."));
    if (focused) [...facetBox.querySelectorAll("button")].find((one) => one.dataset.term === focused)?.focus();
    replace(help, keyHelp(keys));
    const names = kind === "groups" ? group_sorts : sorts;
    replace(sorting, h("option", { value: "" }, "in order"), names.flatMap((name) => [
      h("option", { value: name }, `${name} ↑`), h("option", { value: `-${name}` }, `${name} ↓`)]));
    sorting.value = sort;
  }

  function draw() {
    const noun = kind === "groups" ? "group" : "trajectory";
    replace(total_, problem.textContent ? "" : total === 1 ? `1 ${noun}` : `${count(total)} ${noun === "group" ? "groups" : "trajectories"}`);
    replace(head, h("tr", {}, (kind === "groups" ? GROUP_COLUMNS : COLUMNS).map(([key, text, className]) => {
      const isSorted = sort !== "" && sort.replace("-", "") === key;
      return h("th", {
        class: className ?? null, "aria-sort": isSorted ? (sort.startsWith("-") ? "descending" : "ascending") : null,
      }, key ? h("button", {
        type: "button", onclick: () => go({ sort: sort === key ? `-${key}` : sort === `-${key}` ? "" : key }),
      }, text, isSorted && (sort.startsWith("-") ? " ↓" : " ↑")) : text);
    })));
    if (rows.length) replace(body, rows.map(line));
    else {
      replace(body, h("tr", { class: "none" }, h("td", { colspan: 12 }, problem.textContent ? "" :
        q ? ["Nothing meets all conditions. ", h("button", { type: "button", onclick: () => go({ q: "" }) }, "Clear the query")]
          : "No trajectory has been written yet. This page updates by itself.")));
    }
    mark();
  }

  function line(row, index) {
    const href = target(row);
    return h("tr", { class: marked.has(row.address) ? "marked" : null, onclick: (event) => { if (!event.target.closest("a")) { selected = index; mark(); location.hash = href; } } },
      kind === "groups" ? groupCells(run, row, href) : cells(run, row, href));
  }

  const name = (row) => row.address ?? row.first;

  const target = (row) => kind === "groups" ? links.toGroup(run, row.first, { q, sort }) : links.toTrajectory(run, row.address, { q, sort });

  const toSides = () => links.toSides(run, [...marked], { q, sort });

  function mark() {
    [...body.children].forEach((row, index) => row.classList.toggle("selected", index === selected));
  }

  function toggleMark() {
    const address = rows[selected]?.address;
    if (address === undefined) return;
    if (!marked.delete(address)) marked.add(address);
    body.children[selected].classList.toggle("marked", marked.has(address));
    replace(markedBox, marked.size > 0 && h("a", { href: toSides() }, `${marked.size} marked: side by side`));
  }

  function select(step) {
    if (!rows.length) return;
    document.activeElement?.blur(); // so that Enter opens the row, not a filter that was clicked before
    selected = Math.max(0, Math.min(rows.length - 1, selected + step));
    mark();
    body.children[selected].scrollIntoView({ block: "nearest" });
  }

  return {
    title: `${kind} · ${run}`,
    className: "wide-page",
    crumbs: [["runs", links.toRuns()], [run, links.toRun(run)], [kind]],
    async load({ signal }) {
      const before = left.get(here({ q, sort }));
      await readFirst(signal, before?.rows);
      selected = rows.findIndex((row) => name(row) === visited.address);
      mark();
      watcher.observe(sentinel);
      return [
        h("div", { class: "list-head" },
          tabs(run, kind, { q }),
          h("form", { class: "search", role: "search", onsubmit: (event) => { event.preventDefault(); input.blur(); go({ q: input.value.trim() }); } },
            input, h("button", {}, "Search")),
          problem),
        h("div", { class: "with-side" },
          h("aside", {}, h("details", { class: "filters", open: matchMedia("(min-width: 900px)").matches },
            h("summary", {}, "Filters"), facetBox, help)),
          h("div", { class: "rows" },
            h("div", { class: "list-bar" }, total_, markedBox, h("label", {}, "sort ", sorting)),
            h("div", { class: "scroll" }, h("table", { class: "list" }, head, body)),
            sentinel)),
      ];
    },
    shown() {
      window.scrollTo(0, left.get(here({ q, sort }))?.scroll ?? 0);
      body.children[selected]?.scrollIntoView({ block: "nearest" });
    },
    leave() {
      watcher.disconnect();
      left.set(here({ q, sort }), { rows: Math.max(PAGE, rows.length), scroll: window.scrollY });
    },
    update(next) {
      [q, sort] = [next.get("q") ?? "", next.get("sort") ?? ""];
      input.value = q;
      selected = -1;
      readFirst().catch(show);
      const nav = document.querySelector(".list-head .tabs");
      nav?.replaceWith(tabs(run, kind, { q }));
      return true;
    },
    async refresh() {
      if (reading) return null;
      const state = await get("state", { run });
      if (state.generation !== generation) await readFirst(undefined, Math.max(PAGE, rows.length));
      return state.indexing;
    },
    keys: [
      [["j", "ArrowDown"], "next row", () => select(1)],
      [["k", "ArrowUp"], "previous row", () => select(-1)],
      [["Enter"], "open it", () => { if (rows[selected]) location.hash = target(rows[selected]); }],
      ...(kind === "groups" ? [] : [
        [["x"], "mark the row", toggleMark],
        [["c"], "the marked ones side by side", () => { if (marked.size) location.hash = toSides(); }],
      ]),
      [["/"], "search", () => { input.focus(); input.select(); }],
      [["f"], "only failures", () => toggle("success:false")],
      [["t", "g"], kind === "groups" ? "trajectories" : "groups",
        () => { location.hash = (kind === "groups" ? links.toList : links.toGroups)(run, { q }); }],
    ],
  };
}

const COLUMNS = [
  ["step", "step", "words"], ["item", "item", "words"], ["sample", "sample"], ["", "metadata", "words wide"], ["success", "outcome", "words"],
  ["reward", "reward"], ["turns", "turns"], ["tokens", "tokens", "wide"], ["stop", "stop", "words wide"],
  ["logprob", "log-prob", "wide"], ["version", "version", "wide"], ["", "note", "words wide"],
];
const GROUP_COLUMNS = [
  ["step", "step", "words"], ["item", "item", "words"], ["", "metadata", "words wide"], ["success", "solved", "words"],
  ["samples", "samples"], ["reward", "mean reward"], ["spread", "spread", "wide"], ["turns", "mean turns", "wide"],
];

function cells(run, row, href) {
  return [
    h("td", { class: "words when" }, row.step ?? stepText(row)),
    h("th", { scope: "row", class: "words" }, h("a", { href }, row.item)),
    h("td", {}, row.sample),
    h("td", { class: "words wide tags" }, tags(row.metadata).slice(0, 4)),
    h("td", { class: "words" }, outcome(row)),
    h("td", {}, number(row.reward)),
    h("td", {}, row.turns, row.unparsed > 0 && h("span", { class: "flag", title: `${plural(row.unparsed, "turn")} not in the agent's format` }, ` (${row.unparsed})`)),
    h("td", { class: "wide", title: seconds(row.seconds) }, count(row.tokens)),
    h("td", { class: "words wide" }, stopText(row.stop)),
    h("td", { class: "wide" }, fixed(row.logprob, 2)),
    h("td", { class: "wide" }, versionText(row.versions)),
    h("td", { class: "words wide note" }, row.label && h("span", { class: "tag label" }, row.label), row.note.slice(0, 80)),
  ];
}

function groupCells(run, row, href) {
  return [
    h("td", { class: "words when" }, row.step ?? stepText(row)),
    h("th", { scope: "row", class: "words" }, h("a", { href }, row.item)),
    h("td", { class: "words wide tags" }, tags(row.metadata).slice(0, 4)),
    h("td", { class: "words" }, h("span", { class: "meter" },
      h("i", { style: { width: `${(100 * row.successes) / Math.max(1, row.samples)}%` } })), ` ${row.successes} of ${row.samples}`),
    h("td", {}, row.samples, row.failed > 0 && h("span", { class: "flag", title: `${plural(row.failed, "more sample")} ended with an error, which training drops` }, ` (${row.failed})`)),
    h("td", {}, number(row.reward)),
    h("td", { class: "wide", title: row.spread === 0 ? "All rewards are equal: the group gives no advantage." : null }, number(row.spread)),
    h("td", { class: "wide" }, number(row.turns)),
  ];
}

function facetBlock(facet, terms, toggle) {
  const most = Math.max(...facet.values.map(([, total]) => total));
  const line = ([value, total, successes]) => {
    const term = links.condition(facet.key, value);
    const isOn = terms.includes(term);
    return h("button", {
      type: "button", class: "facet", "data-term": term, "aria-pressed": String(isOn), onclick: () => toggle(term),
      title: `${term}: ${count(total)}, ${Math.round((100 * successes) / total)}% solved`,
    },
      h("span", { class: "name" }, value === "true" && facet.key === "success" ? "solved" : value === "false" && facet.key === "success" ? "not solved" : facet.key === "stop" ? stopText(value) : value),
      h("span", { class: "count" }, count(total)),
      h("span", { class: "meter" }, h("i", { class: "all", style: { width: `${(100 * total) / most}%` } },
        h("i", { style: { width: `${(100 * successes) / total}%` } }))));
  };
  const many = facet.values.slice(FACET_VALUES);
  return h("section", {}, h("h3", {}, facet.key),
    facet.values.slice(0, FACET_VALUES).map(line),
    many.length > 0 && h("details", {}, h("summary", {}, `${many.length} more`), many.map(line)));
}

const keyHelp = (keys) => h("details", { class: "grammar" },
  h("summary", {}, "How to search"),
  h("p", {}, "Conditions that all hold: ", h("code", {}, "key:value"), ", ", h("code", {}, "key:a,b"), ", ",
    h("code", {}, "key:1..8"), ", ", h("code", {}, "key>3"), ", a word, or ", h("code", {}, '"several words"'), "; ",
    h("code", {}, "-"), " before one negates it, ", h("code", {}, "*"), " after a word continues it. A key or a value with spaces is quoted as well; ",
    h("code", {}, '""'), " within quotes is a quote."),
  pairs(Object.entries(keys).map(([key, text]) => [h("code", {}, key), text])));

// The conditions of a query, without a look into them: quoted parts stay whole.
const split = (text) => text.match(/(?:"[^"]*"|[^\s"])+/g) ?? [];
