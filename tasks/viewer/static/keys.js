// Keyboard keys: each view says which it has; `?` lists them.

let bindings = [];

// [[keys, what they do, function], …]; a key is `KeyboardEvent.key`.
export function setKeys(list) {
  bindings = list;
}

const typing = (target) => target.closest?.("input, textarea, select, [contenteditable]");

export function listen(everywhere) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]") && event.key !== "?") return;
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const binding = [...bindings, ...everywhere].find(([keys]) => keys.includes(event.key));
    if (!binding) return;
    event.preventDefault();
    binding[2](event);
  });
}

const NAMES = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", Enter: "Enter", Escape: "Esc" };

export const shownKeys = (everywhere) =>
  [...bindings, ...everywhere].map(([keys, text]) => [keys.map((key) => NAMES[key] ?? key), text]);
