// Addresses of views. Everything that is seen is in the part after `#`, so that a link opens the same view:
//
//   #/                                           the runs
//   #/run/<run>                                  a run
//   #/run/<run>/trajectories?q=…&sort=…          trajectories that a query selects
//   #/run/<run>/groups?q=…&sort=…                their groups
//   #/run/<run>/at/<file>:<line>?turn=…&show=…   a trajectory, its turn, tokens instead of text
//   #/run/<run>/group/<file>:<line>              the group of a trajectory, side by side
//   #/run/<run>/sides?at=…&at=…                  any trajectories, side by side
//   #/run/<run>/item?item=…                      an item over the training
//   #/run/<run>/fork/<file>:<line>?turn=…        a trajectory up to a turn, from which something else goes on
//   #/console?env=…&item=…                       an environment in which a person acts

export function parse(hash) {
  const [path, query = ""] = splitOnce(hash.replace(/^#\/?/, ""), "?");
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

// The turn of an address, a whole number; 0 if there is none.
export const turnOf = (query) => Math.trunc(Number(query.get("turn"))) || 0;

function splitOnce(text, mark) {
  const place = text.indexOf(mark);
  return place < 0 ? [text] : [text.slice(0, place), text.slice(place + 1)];
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

// Readable: what needs no escape in a fragment stays as it is.
const escape = (text) => encodeURIComponent(text).replace(/%3A/g, ":").replace(/%2C/g, ",");

function link(parts, query = {}) {
  const pairs = Object.entries(query).flatMap(([key, value]) =>
    (Array.isArray(value) ? value : [value])
      .filter((one) => one !== undefined && one !== null && one !== "")
      .map((one) => `${key}=${escape(String(one)).replace(/%20/g, "+")}`));
  return `#/${parts.map(escape).join("/")}${pairs.length ? `?${pairs.join("&")}` : ""}`;
}

export const toRuns = () => "#/";
export const toRun = (run) => link(["run", run]);
export const toList = (run, query = {}) => link(["run", run, "trajectories"], query);
export const toGroups = (run, query = {}) => link(["run", run, "groups"], query);
export const toTrajectory = (run, address, query = {}) => link(["run", run, "at", address], query);
export const toGroup = (run, address, query = {}) => link(["run", run, "group", address], query);
export const toSides = (run, addresses, query = {}) => link(["run", run, "sides"], { at: addresses, ...query });
export const toFork = (run, address, turn) => link(["run", run, "fork", address], { turn });
export const toConsole = (query = {}) => link(["console"], query);
export const toItem = (run, item) => link(["run", run, "item"], { item });

// Where a trajectory comes from, as a query: its step, its round, or its phase.
export const origin = (row) => row.step !== null ? condition("step", row.step)
  : row.round !== null ? condition("round", row.round) : condition("phase", row.phase);

// A condition of a query, with quotes around a key and a value that need them.
export const condition = (key, value) => `${quoted(key, /^[^\s":<>=-][^\s":<>=]*$/)}:${quoted(String(value), /^[^\s",<>=:]+$/)}`;

const quoted = (text, plain) => (plain.test(text) ? text : `"${text.replaceAll('"', '""')}"`);
