// The page as a whole: what is looked at, which is in the address after the #; the newest facts, asked for once a
// second; and keys. Views are functions from what is known to elements, so that nothing on the page can be out of date.

import { byId, h, render } from "./dom.js";
import { ago, clock } from "./format.js";
import { overview } from "./overview.js";
import { dataflow } from "./dataflow.js";
import { timeline } from "./timeline.js";
import { causes } from "./causes.js";
import { replicas } from "./replicas.js";
import { drawer } from "./drawer.js";
import { helpPage } from "./help.js";
import { nextTheme, showTheme } from "./theme.js";
import { history } from "./rates.js";

const EVERY_MS = 1000;

const VIEWS = {
  overview: { title: "Overview", view: overview },
  dataflow: { title: "Dataflow", view: dataflow },
  timeline: { title: "Timeline", view: timeline },
  causes: { title: "Causes", view: causes },
  replicas: { title: "Replicas", view: replicas },
};
const NAMES = Object.keys(VIEWS);

/** All that the views are made from. */
export const state = { facts: null, at: 0, failure: "", view: "overview", where: new URLSearchParams(), mounted: null };

/** Look at something else; what is null is not looked at any more. */
export function go(changes, { replace = false } = {}) {
  const where = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") where.delete(name);
    else where.set(name, value);
  }
  const hash = `#${where}`;
  if (hash === location.hash) return show();
  if (replace) {
    window.history.replaceState(null, "", hash);
    read();
    show();
  } else location.hash = hash;
}

function read() {
  state.where = new URLSearchParams(location.hash.slice(1));
  const wanted = state.where.get("view");
  state.view = NAMES.includes(wanted) ? wanted : "overview";
}

export function show() {
  if (!state.facts) return;
  const main = byId("main");
  const chosen = VIEWS[state.view].view;
  if (state.mounted !== state.view) {
    main.replaceChildren();
    main.className = state.view;
    state.mounted = state.view;
    main.scrollTop = 0;
  }
  render(main, chosen.show(state));
  chosen.drawn?.(main, state);
  showDrawer();
  showHeader();
}

function showDrawer() {
  const peer = state.where.get("peer");
  const element = byId("drawer");
  const was = element.hidden;
  element.hidden = !peer;
  document.body.classList.toggle("with-drawer", Boolean(peer));
  if (peer) {
    render(element, drawer(state, peer));
    if (was) element.querySelector("button")?.focus({ preventScroll: true });
  }
}

function showHeader() {
  const { facts } = state;
  render(
    byId("views"),
    NAMES.map((name, position) =>
      h(
        "a",
        {
          href: `#view=${name}`,
          role: "tab",
          "aria-selected": String(name === state.view),
          "data-view": name,
          title: `${VIEWS[name].title} (${position + 1})`,
        },
        VIEWS[name].title,
        h("kbd", { "aria-hidden": "true" }, position + 1),
      ),
    ),
  );
  byId("source").textContent = facts.source.name;
  byId("source").title = facts.source.title;
  const promise = byId("promise");
  const trouble = state.failure || facts.trouble;
  promise.dataset.level = trouble ? "files" : facts.promise.level; // what was promised last is no promise now
  render(
    promise,
    h("span", { class: "shield", "aria-hidden": "true" }),
    h("b", {}, facts.promise.word),
    " ",
    h("span", { class: "words" }, facts.promise.text),
  );
  byId("trouble").hidden = !trouble;
  byId("trouble").textContent = trouble;
  showFreshness();
}

function showFreshness() {
  const element = byId("freshness");
  const { facts } = state;
  if (!facts) return;
  if (!facts.source.live) {
    element.dataset.live = "files";
    element.textContent = facts.at ? `files, last written ${ago(Date.now() / 1000 - facts.at)}` : "files";
    return;
  }
  const old = (performance.now() - state.at) / 1000;
  element.dataset.live = state.failure || facts.trouble || old > 5 ? "no" : "yes";
  element.textContent = old > 5 || state.failure ? `as of ${clock(facts.at * 1000)}` : "live";
}

async function ask() {
  try {
    const answer = await fetch("facts");
    if (!answer.ok)
      throw new Error(
        answer.status === 401
          ? "this page's key is not valid any more: open the address that stash ui has printed"
          : (await answer.json()).error,
      );
    state.facts = await answer.json();
    state.at = performance.now();
    state.failure = "";
    history.add(state.facts);
  } catch (error) {
    state.failure =
      error instanceof TypeError ? "stash ui does not answer any more: is it still running?" : error.message;
    byId("trouble").hidden = false;
    byId("trouble").textContent = state.failure;
  }
  if (document.visibilityState === "visible" || !state.mounted) show();
  showFreshness();
  if (!state.facts || state.facts.source.live || state.failure) setTimeout(ask, EVERY_MS);
}

// pointers

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-peer], [data-recovery], [data-call], [data-go], [data-close]");
  if (!target) return;
  const { peer, recovery, call, go: place } = target.dataset;
  if (target.dataset.close !== undefined) go({ peer: null });
  else if (call) go({ view: "causes", call, node: null });
  else if (recovery) go({ view: "timeline", recovery });
  else if (place) go({ view: place, peer: null });
  else if (peer) go({ peer });
  event.preventDefault();
});

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => tell(event.target.closest?.("[data-tip]")));
}
for (const kind of ["pointerout", "focusout", "wheel", "scroll"]) {
  document.addEventListener(
    kind,
    () => {
      byId("tip").hidden = true;
    },
    { capture: true, passive: true },
  );
}

function tell(target) {
  const tip = byId("tip");
  if (!target) return;
  tip.textContent = target.dataset.tip;
  tip.hidden = false;
  const box = target.getBoundingClientRect(),
    own = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 8);
  const above = box.top - own.height - 8;
  tip.style.setProperty("left", `${left}px`);
  tip.style.setProperty("top", `${above > 4 ? above : box.bottom + 8}px`);
}

// keys

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape") return leave(event);
  if (typing) return;
  if (byId("help").open) return;
  if (moveInRows(event) || VIEWS[state.view].view.key?.(event, state)) return event.preventDefault();
  const act = KEYS[event.key] ?? (NAMES[Number(event.key) - 1] && (() => go({ view: NAMES[Number(event.key) - 1] })));
  if (act) {
    act();
    event.preventDefault();
  }
});

const KEYS = {
  "?": () => toggleHelp(),
  t: () => nextTheme(),
  "/": () => {
    if (!byId("main").querySelector("input[type=search]")) go({ view: "overview" });
    requestAnimationFrame(() => byId("main").querySelector("input[type=search]")?.focus());
  },
};

function leave(event) {
  if (byId("help").open) return;
  if (event.target.matches("input")) event.target.blur();
  else if (state.where.get("peer")) go({ peer: null });
  else if (state.where.get("recovery")) go({ recovery: null });
}

/** Arrows go from row to row, and Enter opens one. */
function moveInRows(event) {
  const row = event.target.closest("[data-row]");
  if (event.key === "Enter" && event.target.matches("[data-row], [data-key][tabindex]")) {
    event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    return true;
  }
  const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
  const rows = [...(row?.parentElement ?? byId("main")).querySelectorAll("[data-row]")];
  if (!step || !rows.length || (!row && !["j", "k"].includes(event.key))) return false;
  const next = rows[Math.min(rows.length - 1, Math.max(0, (row ? rows.indexOf(row) : -1) + step))];
  rows.forEach((each) => each.setAttribute("tabindex", each === next ? "0" : "-1"));
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  return true;
}

function toggleHelp() {
  const dialog = byId("help");
  render(dialog, helpPage());
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

byId("help-button").addEventListener("click", toggleHelp);
byId("help").addEventListener("click", (event) => {
  if (event.target === byId("help")) byId("help").close();
});
byId("theme").addEventListener("click", nextTheme);
window.addEventListener("hashchange", () => {
  read();
  show();
});
window.addEventListener("resize", show);
document.addEventListener("input", (event) => {
  if (event.target.name) go({ [event.target.name]: event.target.value }, { replace: true });
});
document.addEventListener("change", (event) => {
  if (event.target.type === "checkbox")
    go({ [event.target.name]: event.target.checked ? "yes" : null }, { replace: true });
});
document.addEventListener("visibilitychange", show);
setInterval(showFreshness, EVERY_MS);
showTheme();
read();
ask();
