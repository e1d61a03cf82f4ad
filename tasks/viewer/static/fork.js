// A trajectory up to a turn, from which a policy or a person goes on; and an environment without a past.

import { act, ApiError, get, liveImageUrl } from "./api.js";
import { h, longText, number, plural, replace } from "./dom.js";
import * as links from "./links.js";
import { outcome, rateText, stopText, tags } from "./rows.js";
import { forkList, images, observation, observed, opening, words } from "./trajectory.js";

const PERSON = "person";

// What is under way: its turns from `firstTurn`, or its samples, and a person's line. `hasOpening` says whether the
// page shows the first observation already; `onEnd` is called when it has ended.
function liveBox({ firstTurn, hasOpening, onEnd }) {
  const turns = h("ol", { class: "turns live-turns" });
  const status = h("p", { class: "live-status", role: "status" });
  const line = h("textarea", { rows: 2, id: "line", "aria-label": "Your action", placeholder: "your action, then Enter", autocomplete: "off", spellcheck: "false" });
  const send = h("button", {}, "Act");
  const leaveButton = h("button", { type: "button", onclick: () => stop() }, "Leave");
  const form = h("form", { class: "console", hidden: true, onsubmit: (event) => { event.preventDefault(); submit(); } }, line, h("div", {}, send, " ", leaveButton));
  const samples = h("div", { class: "dots" });
  const box = h("div", { class: "live-box" }, turns, samples, status, form);
  let id = null, shown = 0, openingBox = null, isWaiting = false, isPerson = false, numStarts = 0;

  line.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
  });

  async function submit() {
    const text = line.value.trim();
    if (!text || !isWaiting) return;
    isWaiting = false;
    send.disabled = true;
    try {
      await act("act", { id, line: text });
      line.value = "";
    } catch (error) {
      say(error.message, true);
      isWaiting = true;
      send.disabled = false;
    }
  }

  const stop = (which = id) => which && act("stop", { id: which }).catch((error) => say(error.message, true));
  const say = (text, isProblem = false) => replace(status, h("span", { class: isProblem ? "problem" : null }, text));

  // Returns when it has ended. An episode without its person ends: that of the last start, and one that starts after it was left or started anew.
  async function start(name, body, isCurrent) {
    const own = ++numStarts, isOver = () => own !== numStarts || !isCurrent();
    const last = isPerson ? id : null, isOfPerson = name === "console" || body.policy === PERSON;
    isPerson = isOfPerson;
    replace(turns); replace(samples);
    openingBox?.remove();
    [id, shown, openingBox, isWaiting] = [null, 0, null, false];
    form.hidden = true;
    say("Starting…");
    await stop(last);
    if (isOver()) return;
    try {
      const answer = await act(name, body);
      if (isOver()) {
        if (isOfPerson) stop(answer.id);
        return;
      }
      id = answer.id;
    } catch (error) {
      if (!isOver()) say(error.message, true);
      return;
    }
    await follow(isCurrent);
  }

  // Goes on showing samples that were left.
  async function resume(name, isCurrent) {
    numStarts++;
    id = name;
    await follow(isCurrent);
  }

  function leave() {
    numStarts++;
    if (isPerson) stop();
  }

  async function follow(isCurrent) {
    const own = id;
    let version = -1, state = null;
    try {
      do {
        state = await get("live", { id: own, after: version });
        if (!isCurrent() || own !== id) return;
        version = state.version;
        draw(state);
      } while (["starting", "running", "waiting"].includes(state.state));
      onEnd(state);
    } catch (error) {
      if (error.name !== "AbortError") say(error.message, true);
    }
  }

  function draw(state) {
    if (state.opening !== null && !openingBox && !hasOpening()) {
      openingBox = h("section", { class: "opening" }, longText(state.opening, { className: "prompt", lines: 40 }),
        images(state.opening_images, (place) => liveImageUrl(state.id, -1, place)));
      turns.before(openingBox);
    }
    for (; shown < state.turns.length; shown++) {
      if (shown < firstTurn) continue; // repeated: they are above
      const one = state.turns[shown], index = shown;
      turns.append(h("li", {}, h("span", { class: "turn-number" }, index + 1),
        h("div", { class: "body" }, words(one), observed(one, (place) => liveImageUrl(state.id, index, place))),
        one.reward ? h("p", { class: "numbers" }, h("span", { class: "reward" }, `reward ${number(one.reward, 6)}`)) : null));
    }
    const wasWaiting = isWaiting;
    isWaiting = state.state === "waiting";
    form.hidden = !state.is_person || !["running", "waiting"].includes(state.state);
    send.disabled = !isWaiting;
    if (isWaiting && !wasWaiting) {
      line.focus({ preventScroll: true });
      form.scrollIntoView({ block: "nearest" });
    }
    if (!state.is_person) {
      replace(samples, state.ended.map((one) => h("span", {
        class: `dot ${one.error ? "dropped" : one.success ? "solved" : "unsolved"}`,
        title: `sample ${one.sample}: ${one.error ?? (one.success ? "solved" : "not solved")}, reward ${number(one.reward)}`,
      })));
    }
    replace(status, statusOf(state));
  }

  function statusOf(state) {
    if (state.state === "failed") return h("span", { class: "problem", role: "alert" }, state.error);
    if (state.state === "left") return state.is_person ? "You have left the episode." : `Stopped after ${plural(state.done, "sample")}.`;
    if (state.is_person) {
      const [end] = state.ended;
      return end ? [outcome({ ...end, error: null }), ` ${stopText(end.stop)}, reward ${number(end.reward)}, ${plural(end.turns, "turn")}`]
        : state.state === "waiting" ? "" : "The environment acts…";
    }
    if (state.state === "ended") return `${plural(state.done, "sample")} ended.`;
    return [`${state.done} of ${plural(state.total, "sample")} `, h("button", { type: "button", onclick: () => stop() }, "Stop")];
  }

  // Samples go on when they are left, and are found in the file.
  return { box, start, resume, leave };
}

export function forkView(run, { address, query }) {
  const turn = Math.max(1, links.turnOf(query));
  const forksBox = h("div"), valueBox = h("div");
  let facts = null, context = null, policies = [], places = [];
  const live = liveBox({ firstTurn: turn - 1, hasOpening: () => facts.prompt.tokens > 0, onEnd: () => readForks() });
  const who = h("select", { id: "who", "aria-label": "Who goes on", });
  const temperature = h("input", { id: "temperature", type: "number", min: 0, max: 10, step: "any", placeholder: "as evaluated" });
  const samples = h("input", { id: "samples", type: "number", min: 1, max: 64, step: 1, value: 16 });
  const maxTurns = h("input", { id: "max-turns", type: "number", min: 1, max: 10000, step: 1, placeholder: "as evaluated" });
  const shownText = h("textarea", { id: "observation", rows: 3, "aria-label": "Another observation" });
  const go = h("button", { class: "primary" }, "Go on");
  const ofPolicies = [field("temperature", "Temperature", temperature), field("samples", "Samples", samples)];

  const command = h("code", { class: "path command" });

  // What the form asks for: which fields there are, and the same as a command.
  function toggle() {
    const isPerson = who.value === PERSON, option = (name, input) => (input.value === "" ? [] : [name, quote(input.value)]);
    ofPolicies.forEach((element) => { element.hidden = isPerson; });
    const chosen = policies.find(({ value }) => value === who.value)?.option;
    const going = isPerson ? ["--human"] : [...(chosen ? [chosen] : []), ...option("-n", samples), ...option("--temperature", temperature)];
    const parts = ["wingspan", "fork", quote(`${run}/${address}@${turn}`), ...going, ...option("--max-turns", maxTurns), ...option("--observation", shownText),
      ...places.flatMap((place) => ["--runs", quote(place)])];
    replace(command, parts.map((part) => [h("span", {}, part), " "]));
  }

  async function start() {
    if (go.disabled) return;
    const isPerson = who.value === PERSON;
    const integer = (input) => (input.value === "" ? null : Number(input.value));
    replace(valueBox);
    go.disabled = !isPerson; // samples end or are stopped before others begin
    await live.start("fork", {
      run, address, digest: facts.digest, turn, policy: who.value, max_turns: integer(maxTurns), observation: shownText.value || null,
      ...(isPerson ? {} : { samples: integer(samples) ?? 1, temperature: integer(temperature) }),
    }, context.isCurrent);
    if (!isPerson) go.disabled = false;
  }

  async function resume(name) {
    go.disabled = true;
    await live.resume(name, context.isCurrent);
    go.disabled = false;
  }

  async function readForks() {
    const answer = await get("forks", { run, address }, context.signal);
    const here = answer.forks.filter((one) => one.turn === turn);
    const newest = here.at(-1);
    [policies, places] = [answer.policies, answer.runs];
    replace(forksBox, answer.forks.length > 0 && [h("h2", {}, "Forks of this trajectory"), forkList(run, answer.forks)]);
    replace(valueBox, newest && newest.value.samples > 1 && h("dl", { class: "facts" },
      [["success from here", rateText(newest.value.success)],
        ["reward", newest.value.reward ? `${number(newest.value.reward.mean)} (${number(newest.value.reward.low)} to ${number(newest.value.reward.high)})` : "–"],
        ["samples", newest.value.samples]].map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text)))));
    return answer;
  }

  function content() {
    const { row } = facts, past = facts.turns.slice(0, turn - 1), recorded = facts.turns[turn - 1];
    replace(who, policies.map(({ value }) => h("option", { value }, value)), h("option", { value: PERSON }, "you, in this page"));
    toggle();
    return [
      h("header", { class: "page-head" },
        h("h1", {}, row.item, h("span", { class: "sample" }, ` fork at turn ${turn}`)),
        h("p", { class: "line" }, h("a", { href: links.toTrajectory(run, address, { turn }) }, address), tags(row.metadata),
          h("span", {}, past.length ? `${plural(past.length, "turn")} repeated, and compared with the record` : "the episode begins anew"))),
      h("div", { class: "reading" },
        h("div", { class: "column" },
          opening(run, address, facts),
          h("ol", { class: "turns past" }, past.map((one, index) => h("li", {},
            h("span", { class: "turn-number" }, index + 1), h("div", { class: "body" }, words(one), observation(run, address, one, index))))),
          valueBox, live.box,
          recorded && h("details", { class: "recorded" }, h("summary", {}, `turn ${turn} as it was recorded`),
            h("div", { class: "body" }, words(recorded), observation(run, address, recorded, turn - 1)))),
        h("aside", {},
          h("section", {}, h("h2", {}, "Go on from here"),
            h("form", { class: "fork-form", oninput: () => toggle(), onsubmit: (event) => { event.preventDefault(); start(); } },
              field("who", "Who", who), ofPolicies, field("max-turns", "Turns in all", maxTurns),
              h("details", {}, h("summary", {}, "another observation"),
                h("p", { class: "fine" }, `Turn ${turn} is repeated as well, and this is shown in place of what it brought.`), shownText),
              go)),
          h("section", { class: "forks" }, forksBox),
          h("section", {}, h("p", { class: "fine" }, "The same in a terminal:"), command))),
    ];
  }

  return {
    title: `fork of ${address} · ${run}`,
    className: "wide-page",
    crumbs: [["runs", links.toRuns()], [run, links.toRun(run)], [address, links.toTrajectory(run, address, { turn })], [`fork at turn ${turn}`]],
    async load(given) {
      context = given;
      facts = await get("trajectory", { run, address }, given.signal);
      const { sampling } = await readForks();
      if (sampling?.turn === turn) resume(sampling.id);
      return content();
    },
    leave: () => live.leave(),
    keys: [[["f"], "go on", () => start()]],
  };
}

// A word of a shell's command.
const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

const field = (id, text, input) => h("div", { class: "field" }, h("label", { for: id }, text), input);

export function consoleView({ query }) {
  let context = null;
  const env = h("select", { id: "env" });
  const item = h("input", { id: "item", value: query.get("item") ?? "0", autocomplete: "off", size: 8 });
  const holder = h("div");
  let live = null;

  async function start() {
    history.replaceState(null, "", links.toConsole({ env: env.value, item: item.value }));
    live?.leave();
    live = liveBox({ firstTurn: 0, hasOpening: () => false, onEnd: () => {} });
    replace(holder, live.box);
    await live.start("console", { env: env.value, item: item.value.trim() }, context.isCurrent);
  }

  return {
    title: "console",
    crumbs: [["runs", links.toRuns()], ["console"]],
    async load(given) {
      context = given;
      const { environments } = await get("environments", {}, given.signal);
      const chosen = query.get("env") ?? "textcraft";
      if (query.has("env") && !environments.includes(chosen)) {
        throw new ApiError(`There is no environment '${chosen}' here; choose one in the console, ${links.toConsole()}`, 404);
      }
      replace(env, environments.map((name) => h("option", { value: name, selected: name === chosen }, name)));
      return [
        h("header", { class: "page-head" }, h("h1", {}, "Console"),
          h("p", { class: "fine" }, "Act in an environment yourself. Nothing is recorded; fork a trajectory to record what you do.")),
        h("form", { class: "console-form", onsubmit: (event) => { event.preventDefault(); start(); } },
          field("env", "Environment", env), field("item", "Item", item), h("button", { class: "primary" }, "Start")),
        holder,
      ];
    },
    shown() { if (query.get("env")) start(); },
    leave: () => live?.leave(),
    keys: [],
  };
}
