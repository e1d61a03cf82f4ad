// One trajectory, turn by turn.

import { get, imageUrl, post } from "./api.js";
import { count, fixed, h, longText, number, pairs, plain, plural, replace, seconds } from "./dom.js";
import * as links from "./links.js";
import { dot, isFork, outcome, rateText, stepText, stopText, tags, versionText, visited } from "./rows.js";
import { tokenText, legend } from "./tokens.js";

const SHOWN = [
  ["", "text", "Thought, action and observation of each turn"],
  ["sampled", "as sampled", "The policy's text before it was parsed"],
  ["logprob", "log-prob", "Tokens, colored by the probability with which they were sampled"],
  ["owner", "mask", "Tokens, colored by who wrote them, and so which of them are trained on"],
];

// What the update computed, where it was kept.
const SHOWN_OF_UPDATE = [
  ["advantage", "advantage", "Tokens, colored by the credit that the update gave them"],
  ["log_ratio", "trainer − sampler", "Tokens, colored by how the trainer's log-prob differs from the sampler's"],
  ["entropy", "entropy", "Tokens, colored by the entropy of the trainer's distribution before the update"],
];

export function trajectoryView(run, { address, query }) {
  const list = { q: query.get("q") ?? "", sort: query.get("sort") ?? "" };
  let show = query.get("show") ?? "", turn = links.turnOf(query);
  let facts = null, place = null, isShown = false, forks = [], tokens = null;
  const turns = h("ol", { class: "turns" });
  const legendBox = h("div");
  const forksBox = h("section", { class: "forks" });
  const placeBox = h("span", { class: "place" });
  const note = h("textarea", { rows: 3, id: "note", placeholder: "note", "aria-label": "Note", maxlength: 4000 });
  const label = h("input", { id: "label", placeholder: "label", "aria-label": "Label", maxlength: 40, pattern: "[^\\s\"]*", autocomplete: "off", list: "labels" });
  const saved = h("span", { class: "fine", role: "status" });

  const choices = () => [...SHOWN, ...SHOWN_OF_UPDATE.filter(([key]) => facts.turns.some((one) => one[key] !== null))];
  const known = (next) => (choices().some(([key]) => key === next) ? next : "");
  const here = (next = {}) => links.toTrajectory(run, address, { ...list, show, turn: turn || "", ...next });

  function setTurn(next, { scroll = true } = {}) {
    const total = facts.turns.length;
    if (!total) return;
    turn = Math.max(1, Math.min(total, next));
    [...turns.children].forEach((child, index) => child.classList.toggle("selected", index + 1 === turn));
    if (scroll) turns.children[turn - 1].scrollIntoView({ block: "nearest" });
    if (scroll) turns.children[turn - 1].focus({ preventScroll: true });
    history.replaceState(null, "", here());
  }

  function setShow(next) {
    show = known(next);
    history.replaceState(null, "", here());
    document.querySelectorAll(".shown button").forEach((button) =>
      button.setAttribute("aria-pressed", String(button.dataset.show === show)));
    drawTurns();
  }

  function drawTurns() {
    const states = new Map();
    replace(legendBox, legend(show));
    replace(turns, facts.turns.map((one, index) => {
      const before = one.state === null || one.state === undefined ? undefined : states.get(one.state);
      if (one.state && before === undefined) states.set(one.state, index + 1);
      return turnItem(one, index, before);
    }));
    if (turn) setTurn(turn, { scroll: false });
  }

  function turnItem(one, index, before) {
    const body = h("div", { class: "body" });
    if (show && show !== "sampled") {
      replace(body, h("p", { class: "waiting" }, "Reading tokens…"));
      readTokens()
        .then((tokens) => replace(body, tokenText(tokens[index], show)))
        .catch((error) => replace(body, h("p", { class: "problem" }, error.message)));
    } else {
      replace(body, one.prompt && newSegment(one), words(one, show), observation(run, address, one, index));
    }
    return h("li", {
      class: index + 1 === turn ? "selected" : null, tabindex: -1, id: `turn-${index + 1}`,
      onclick: (event) => { if (!event.target.closest("a, button, summary") && !String(getSelection())) setTurn(index + 1, { scroll: false }); },
    },
      h("a", { class: "turn-number", href: here({ turn: index + 1 }), title: "Link to this turn", onclick: (event) => { event.preventDefault(); setTurn(index + 1); } }, index + 1),
      body,
      h("p", { class: "numbers" },
        one.reward !== 0 && one.reward !== null && h("span", { class: "reward" }, `reward ${number(one.reward, 6)}`),
        one.advantage !== null && h("span", { title: "of its tokens, the mean" }, `advantage ${number(one.advantage)}`),
        [plural(one.tokens, "token"), `log-prob ${fixed(one.logprob, 2)}`, `version ${one.version ?? "–"}`,
          one.sampling_s !== null && `${seconds(one.sampling_s)} to sample`,
          one.env_s !== null && `${seconds(one.env_s)} in the environment`].filter(Boolean).map((text) => h("span", {}, text)),
        one.unparsed && h("span", { class: "flag" }, "not in the format"),
        one.finish === "length" && h("span", { class: "flag" }, "cut at the token limit"),
        one.previous_turn !== null && h("span", { class: "flag soft", title: "Conversations of this episode are interleaved." }, `continues turn ${one.previous_turn + 1}`),
        before !== undefined && h("span", { class: "flag soft", title: "The environment's state key is that of an earlier turn." }, `state as before turn ${before}`),
        h("a", { class: "fork-link", href: links.toFork(run, address, index + 1), title: "Repeat the episode up to here, and go on otherwise (f)" }, "fork from here")));
  }

  async function read(signal) {
    facts = await get("trajectory", { run, address }, signal);
    show = known(show);
    readPlace(signal).catch(() => {});
    readForks(signal).catch(() => {});
  }

  // Those of all turns in one answer, which the page keeps: the viewer reads the whole trajectory for any of them.
  function readTokens() {
    tokens ??= get("tokens", { run, address }).then((answer) => answer.turns);
    tokens.catch(() => { tokens = null; });
    return tokens;
  }

  async function readForks(signal) {
    ({ forks } = await get("forks", { run, address }, signal));
    replace(forksBox, forks.length > 0 && [h("h2", {}, "Forks"), forkList(run, forks)]);
  }

  async function readPlace(signal) {
    place = await get("place", { run, address, ...list }, signal);
    replace(placeBox, place.position !== null && [
      step("←", place.before, "previous in the list (←)"), ` ${count(place.position)} of ${count(place.total)} `,
      step("→", place.after, "next in the list (→)")]);
  }

  const step = (text, to, title) => to
    ? h("a", { href: links.toTrajectory(run, to, { ...list, show }), title, class: "step" }, text)
    : h("span", { class: "step off", "aria-hidden": true }, text);

  const follow = (to) => { if (to) location.hash = links.toTrajectory(run, to, { ...list, show }); };

  function sibling(offset) {
    const place = facts.siblings.findIndex((row) => row.address === address);
    follow(facts.siblings[place + offset]?.address);
  }

  async function save() {
    try {
      const answer = await post("annotations", { run, address, digest: facts.digest, label: label.value.trim(), note: note.value });
      replace(saved, answer.label || answer.note ? "saved" : "taken back");
    } catch (error) {
      replace(saved, h("span", { class: "problem" }, error.message));
    }
  }

  function content() {
    const { row } = facts;
    label.value = row.label;
    note.value = row.note;
    return [
      h("header", { class: "page-head" },
        h("h1", {}, row.item, h("span", { class: "sample" }, ` sample ${row.sample}`), " ", outcome(row)),
        h("p", { class: "line" },
          h("a", { href: links.toList(run, { q: links.origin(row) }) }, stepText(row)), tags(row.metadata),
          h("span", {}, `reward ${number(row.reward, 6)}`), h("span", {}, plural(row.turns, "turn")),
          h("span", {}, `${count(row.tokens)} tokens`), h("span", { title: "stop reason" }, stopText(row.stop))),
        row.error && h("p", { class: "problem" }, `dropped after ${plural(facts.attempts, "attempt")}: ${row.error}`),
        h("div", { class: "tools" },
          h("div", { class: "shown", role: "group", "aria-label": "What is shown of a turn" }, choices().map(([key, text, title]) =>
            h("button", { type: "button", title, "data-show": key, "aria-pressed": String(key === show), onclick: () => setShow(key) }, text))),
          placeBox),
        legendBox),
      h("div", { class: "reading" },
        h("div", { class: "column" },
          opening(run, address, facts),
          turns,
          !facts.turns.length && h("p", { class: "fine" }, "The policy had no turn in this episode.")),
        h("aside", {},
          h("section", {}, h("h2", {}, "Group"),
            h("p", { class: "dots" }, facts.siblings.map((one) => dot(one, { run, isCurrent: one.address === address, query: { ...list, show } }))),
            h("p", {}, facts.siblings.length > 1 && [h("a", { href: links.toGroup(run, address) }, "side by side"), " · "],
              h("a", { href: links.toItem(run, row.item) }, "this item over the training"))),
          isFork(row) && h("section", {}, h("h2", {}, "Fork"),
            h("p", {}, "of ", h("a", { href: links.toTrajectory(run, row.labels.parent, { turn: row.labels.turn }) }, row.labels.parent),
              ` at turn ${row.labels.turn}, by ${row.labels.policy}`),
            h("p", {}, h("a", { href: links.toSides(run, [row.labels.parent, address]) }, "beside the original"))),
          forksBox,
          h("section", {}, h("h2", {}, "Annotation"),
            h("form", { class: "annotation", onsubmit: (event) => { event.preventDefault(); save(); } },
              label, note, h("div", {}, h("button", {}, "Save"), " ", saved))),
          h("section", {}, h("h2", {}, "Facts"), factTable(facts)),
          Object.keys(facts.not_recorded).length > 0 && h("section", {}, h("h2", {}, "Not recorded"),
            pairs(Object.entries(facts.not_recorded), "fine stacked")))),
    ];
  }

  return {
    title: `${address} · ${run}`,
    className: "wide-page",
    crumbs: [["runs", links.toRuns()], [run, links.toRun(run)], [list.q || "trajectories", links.toList(run, list)], [address]],
    async load({ signal }) {
      await read(signal);
      visited.address = address;
      drawTurns();
      isShown = true;
      return content();
    },
    shown() {
      if (turn) setTurn(turn);
    },
    update(next) {
      if (!isShown) return false;
      turn = links.turnOf(next);
      if ((next.get("q") ?? "") !== list.q || (next.get("sort") ?? "") !== list.sort) return false;
      if (known(next.get("show") ?? "") !== show) setShow(next.get("show"));
      if (turn) setTurn(turn);
      return true;
    },
    keys: [
      [["j", "ArrowDown"], "next turn", () => setTurn(turn + 1)],
      [["k", "ArrowUp"], "previous turn", () => setTurn(turn - 1)],
      [["ArrowRight", "l"], "next trajectory of the list", () => follow(place?.after)],
      [["ArrowLeft", "h"], "previous trajectory of the list", () => follow(place?.before)],
      [["]"], "next sample of the group", () => sibling(1)],
      [["["], "previous sample of the group", () => sibling(-1)],
      [["s"], "show text, as sampled, log-prob, mask, numbers of the update", () =>
        setShow(choices()[(choices().findIndex(([key]) => key === show) + 1) % choices().length][0])],
      [["g"], "the group side by side", () => { location.hash = links.toGroup(run, address); }],
      [["i"], "this item over the training", () => { location.hash = links.toItem(run, facts.row.item); }],
      [["n"], "write a note", () => note.focus()],
      [["f"], "fork from this turn", () => { location.hash = links.toFork(run, address, turn || 1); }],
      [["/"], "search the run", () => { location.hash = links.toList(run, list); }],
    ],
  };
}

export function words(one, show = "") {
  if (show === "sampled" || one.unparsed) {
    return longText(one.text || "(nothing)", { className: one.unparsed ? "unparsed" : "" });
  }
  return [
    one.thought && longText(one.thought, { className: "thought", lines: 30 }),
    one.calls.length ? one.calls.map(callBox) : one.action && longText(one.action, { className: "action", lines: 30 }),
    !one.thought && !one.action && longText(one.text || "(nothing)"),
  ];
}

const callBox = ({ name, arguments: values }) => h("div", { class: "call" },
  h("code", { class: "action" }, name),
  pairs(Object.entries(values).map(([key, value]) => [key, longText(plain(value), { lines: 20 })])));

export const observation = (run, address, one, index) => observed(one, (place) => imageUrl(run, address, index, place));

// `urlOf` maps an image's place to its address.
export function observed(one, urlOf) {
  return [
    one.observation && longText(one.observation, { className: "observation", lines: 40 }),
    images(one.images, urlOf),
  ];
}

export function images(types, urlOf) {
  const known = ["image/png", "image/jpeg", "image/gif", "image/webp"];
  return types.length > 0 && h("div", { class: "images" }, types.map((type, place) => known.includes(type)
    ? h("img", { src: urlOf(place), alt: `image ${place + 1}`, loading: "lazy" })
    : h("p", { class: "fine" }, `An image of type ${type || "unknown"} is not shown.`)));
}

export function opening(run, address, { prompt, prompt_images, fields }) {
  const text = prompt.text;
  return h("section", { class: "opening" },
    h("h2", {}, "Prompt ", h("span", { class: "fine" }, plural(prompt.tokens, "token"))),
    text === null
      ? h("p", { class: "fine" }, "Files hold the prompt as tokens, and this run has no tokenizer to read them with (policy/tokenizer.json).")
      : longText(text, { tail: true, lines: 14, limit: 2500, className: "prompt" }),
    images(prompt_images, (place) => imageUrl(run, address, -1, place)),
    Object.keys(fields).length > 0 && h("details", {}, h("summary", {}, "fields of the item, which the policy may not see"),
      pairs(Object.entries(fields).map(([key, value]) => [key, longText(plain(value), { lines: 10 })]), "stacked")));
}

const newSegment = (one) => h("details", { class: "segment" },
  h("summary", {}, `A new segment begins: from here the policy saw a prompt of ${plural(one.prompt.tokens, "token")}, not the turns before`),
  one.prompt.text === null ? h("p", { class: "fine" }, "no tokenizer to read it with") : longText(one.prompt.text, { className: "prompt" }));

// The requests that forked a trajectory, with what they say of its turns.
export const forkList = (run, forks) => h("ul", { class: "fork-list" }, forks.map(({ first, turn, policy, temperature, observation: shown, value }) =>
  h("li", {}, h("a", { href: links.toGroup(run, first) }, `turn ${turn}`), ` ${policy}`,
    typeof temperature === "number" && `, temperature ${number(temperature)}`, shown && ", another observation",
    h("br"), h("span", { class: "fine", title: "success, with its 95% interval" },
      value.samples ? `${value.samples > 1 ? rateText(value.success) : value.success.mean ? "solved" : "not solved"}, n = ${value.samples}` : "no sample ended without an error"))));

function factTable({ row, metrics, seed, attempts, seconds: time }) {
  const lines = [
    ["environment", row.env], row.part && ["part", row.part], ["seed", seed], ["policy version", versionText(row.versions)],
    ["log-prob, mean", fixed(row.logprob, 2)], ["time", seconds(time)], ["attempts", attempts],
    ...Object.entries(row.labels).filter(([key]) => !isFork(row) || key !== "parent_digest"), ...Object.entries(metrics).map(([key, value]) => [key.replaceAll("_", " "), number(value)]),
  ].filter(Boolean);
  return pairs(lines.map(([key, value]) => [key, String(value ?? "–")]), "pairs");
}
