// The frame of the page: finds the view of an address, keeps it up to date, and shows what goes wrong.

import { activity, showActivity } from "./activity.js";
import { ApiError } from "./api.js";
import { h, pairs, replace } from "./dom.js";
import { consoleView, forkView } from "./fork.js";
import { listen, setKeys, shownKeys } from "./keys.js";
import * as links from "./links.js";
import { itemView } from "./item.js";
import { listView } from "./list.js";
import { runView } from "./run.js";
import { runsView } from "./runs.js";
import { sidesView } from "./sides.js";
import { trajectoryView } from "./trajectory.js";

const POLL_MS = 2500;
const page = document.getElementById("view");
let current = null; // { hash, controller, update, refresh }

function findView({ parts, query }) {
  const [first, run, kind, ...rest] = parts;
  if (first === undefined) return runsView();
  if (first === "console" && run === undefined) return consoleView({ query });
  if (first !== "run" || run === undefined) return null;
  if (kind === undefined) return runView(run);
  if (kind === "trajectories" || kind === "groups") return listView(run, { kind, query });
  const address = rest.join("/");
  if (kind === "at") return trajectoryView(run, { address, query });
  if (kind === "fork") return forkView(run, { address, query });
  if (kind === "group") return sidesView(run, { group: address, query });
  if (kind === "sides") return sidesView(run, { addresses: query.getAll("at"), query });
  if (kind === "item") return itemView(run, { item: query.get("item") ?? "" });
  return null;
}

// A view is { title, crumbs, load(context), keys?, update?(query), refresh?(), shown?(), leave?() }; `load` gives
// what fills the page, `update` takes a change of the address alone, `refresh` a change of the run.
async function open() {
  const hash = location.hash || "#/";
  const parsed = links.parse(hash);
  const place = parsed.parts.join("/");
  if (current?.place === place && current.view?.update?.(parsed.query)) return;
  current?.view?.leave?.();
  current?.controller.abort();
  const controller = new AbortController();
  const view = findView(parsed);
  current = { place, controller, view, generation: null };
  setKeys(view?.keys ?? []);
  document.title = [view?.title, "Wingspan"].filter(Boolean).join(" · ");
  replace(document.getElementById("crumbs"), (view?.crumbs ?? []).map(([text, href]) =>
    href ? h("a", { href }, text) : h("span", { "aria-current": "page" }, text)));
  page.className = view?.className ?? "";
  if (!view) {
    showError(new ApiError(`There is no such page: ${hash}`, 404));
    return;
  }
  const waiting = setTimeout(() => replace(page, h("p", { class: "waiting" }, "Reading…")), 150);
  try {
    const nodes = await view.load({ signal: controller.signal, isCurrent: () => current?.controller === controller });
    if (current?.controller !== controller) return;
    clearTimeout(waiting);
    replace(page, nodes);
    window.scrollTo(0, 0);
    view.shown?.();
  } catch (error) {
    if (current?.controller === controller) showError(error);
  } finally {
    clearTimeout(waiting);
  }
}

function showError(error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError)) console.error(error); // the page itself says what was refused
  replace(page, h("div", { class: "empty", role: "alert" },
    h("h1", {}, error.status === 404 ? "Not here" : "This did not work"),
    h("p", {}, error.message),
    h("p", {}, h("a", { href: links.toRuns() }, "All runs"), " · ",
      h("button", { type: "button", onclick: () => { current = null; open(); } }, "Try again"))));
}

async function poll() {
  const seen = current;
  if (!document.hidden && seen?.view?.refresh) {
    try {
      const progress = await seen.view.refresh();
      if (seen === current) showActivity(progress);
    } catch (error) {
      if (error.name !== "AbortError" && seen === current) replace(activity, error.message);
    }
  }
  setTimeout(poll, POLL_MS);
}

function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.style.colorScheme
    ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.style.colorScheme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.style.colorScheme); } catch { /* storage is switched off */ }
}

function showKeys() {
  const dialog = document.getElementById("keys");
  if (dialog.open) {
    dialog.close();
    return;
  }
  replace(dialog,
    h("h2", {}, "Keys"),
    pairs(shownKeys(everywhere).map(([keys, text]) => [keys.map((key) => h("kbd", {}, key)), text])),
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")));
  dialog.showModal();
}

function up() {
  const anchors = document.querySelectorAll("#crumbs a");
  location.hash = anchors.length ? anchors[anchors.length - 1].getAttribute("href") : links.toRuns();
}

const everywhere = [
  [["u"], "up: the list, the run, all runs", up],
  [["d"], "light or dark", toggleTheme],
  [["?"], "this list", showKeys],
];

document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("help").addEventListener("click", showKeys);
document.getElementById("keys").addEventListener("click", (event) => {
  if (event.target === event.currentTarget) event.currentTarget.close();
});
listen(everywhere);
history.scrollRestoration = "manual"; // a list returns to where it was by itself
window.addEventListener("hashchange", open);
open();
setTimeout(poll, POLL_MS);
