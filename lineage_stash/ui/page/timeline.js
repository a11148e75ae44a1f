// The timeline: what died when, and what happened until it was back. From days to milliseconds.

import { go, show } from "./app.js";
import { h } from "./dom.js";
import { bytes, clock, duration, many, moment, natural } from "./format.js";
import { indexed, title } from "./peers.js";
import { MEANINGS, legend, spans } from "./phases.js";
import { around, extent, moved, scaleOf, ticks, zoomed } from "./scale.js";

const LANE = 28;
const AXIS = 26;
const LABELS = 190;
const RIGHT = 18;
const NARROW_PX = 10;
const MOVE_MS = 220;

// What is looked at: everything while `window` is null.
const seen = { window: null, focused: null, width: 0, moving: 0 };

const windowOf = (facts) => seen.window ?? extent(facts);

function lanesOf(facts) {
  const failed = new Set([...facts.recoveries, ...facts.under_way].map((one) => one.peer));
  return [...failed].sort(natural);
}

// drawing

function chart(facts, chosen) {
  const lanes = lanesOf(facts), width = Math.max(seen.width || 900, 480);
  const looked = windowOf(facts), plot = width - LABELS - RIGHT;
  const scale = scaleOf(looked, LABELS, plot), height = AXIS + lanes.length * LANE + 8;
  const lane = new Map(lanes.map((peer, position) => [peer, AXIS + position * LANE]));
  const marks = ticks(looked, plot);
  return h("svg", { class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
    "aria-label": `Recoveries from ${clock(looked.from, 1)} to ${clock(looked.to, 1)}` },
    h("defs", {}, h("clipPath", { id: "plot" }, h("rect", { x: LABELS, y: 0, width: plot + RIGHT, height }))),
    h("g", { class: "lanes" }, lanes.map((peer) => h("g", { "data-key": peer },
      h("rect", { class: "band", x: 0, y: lane.get(peer), width, height: LANE }),
      h("text", { class: "lane", x: LABELS - 12, y: lane.get(peer) + LANE / 2 + 4, "data-peer": peer }, cut(title(peer, facts), 24))))),
    h("g", { class: "axis", "clip-path": "url(#plot)" }, marks.at.map((at) => h("g", { "data-key": String(at), transform: `translate(${scale.x(at).toFixed(1)} 0)` },
      h("line", { y1: AXIS - 6, y2: height }), h("text", { y: 14 }, clock(at, marks.step))))),
    h("g", { "clip-path": "url(#plot)" },
      h("g", { class: "rounds" }, rounds(facts).map((round) => roundOf(round, lane, scale))),
      h("g", { class: "recoveries" }, facts.recoveries.filter((one) => isSeen(one, looked)).map((one) => recoveryOf(one, lane.get(one.peer), scale, one.id === chosen, facts))),
      h("g", { class: "under-way" }, facts.under_way.map((one) => waitingOf(one, lane.get(one.peer), scale, facts))),
      facts.source.live ? h("line", { class: "now", x1: scale.x(facts.at * 1000), x2: scale.x(facts.at * 1000), y1: AXIS - 6, y2: height }) : null));
}

const isSeen = (one, { from, to }) => one.noticed_at * 1000 <= to && one.noticed_at * 1000 + one.total_ms >= from - (to - from) / 50;

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Rounds in which several were recovered together. */
function rounds(facts) {
  const found = new Map();
  for (const one of facts.recoveries) found.set(one.round, [...(found.get(one.round) ?? []), one]);
  return [...found].filter(([, members]) => members.length > 1).map(([round, members]) => ({ round, members }));
}

function roundOf({ round, members }, lane, scale) {
  const from = scale.x(Math.min(...members.map((one) => one.noticed_at * 1000)));
  const to = scale.x(Math.max(...members.map((one) => one.noticed_at * 1000 + one.total_ms)));
  const places = members.map((one) => lane.get(one.peer));
  const top = Math.min(...places), bottom = Math.max(...places) + LANE;
  return h("rect", { "data-key": `round ${round}`, x: from - 4, y: top + 2, width: Math.max(8, to - from + 8), height: bottom - top - 4, rx: 6,
    "data-tip": `round ${round}: ${members.length} recovered together` });
}

function recoveryOf(one, top, scale, chosen, facts) {
  const start = one.noticed_at * 1000, from = scale.x(start), width = one.total_ms * scale.perMs;
  const words = `${title(one.peer, facts)}, life ${one.incarnation}: ${duration(one.total_ms)}, ${clock(start, 1)}`;
  const attributes = { class: `recovery${chosen ? " chosen" : ""}`, "data-key": one.id, "data-recovery": one.id, tabindex: "0", role: "button",
    "aria-label": words, "data-tip": width < NARROW_PX ? words : null };
  const middle = top + LANE / 2;
  if (width < NARROW_PX) {
    return h("g", attributes, h("path", { class: "mark", d: `M${from.toFixed(1)} ${middle - 7} l6 7 l-6 7 l-6 -7 z` }));
  }
  return h("g", attributes, h("rect", { class: "outline", x: from - 2, y: middle - 11, width: width + 4, height: 22, rx: 5 }),
    spans(one).map(({ phase, from: begin, ms }) => {
      const x = from + begin * scale.perMs, wide = ms * scale.perMs;
      return [h("rect", { "data-phase": phase, x: x.toFixed(2), y: middle - 9, width: Math.max(wide, 0.75).toFixed(2), height: 18,
        "data-tip": `${phase} ${duration(ms)}: ${MEANINGS[phase]}` }),
      wide > phase.length * 7 + 8 ? h("text", { class: "phase", x: x + wide / 2, y: middle + 4 }, wide > phase.length * 7 + 58 ? `${phase} ${duration(ms)}` : phase) : null];
    }),
    h("path", { class: "death", d: `M${(from - 4).toFixed(1)} ${middle - 13} h8 l-4 6 z` }));
}

function waitingOf(one, top, scale, facts) {
  const from = scale.x(one.since * 1000), to = scale.x(facts.at * 1000), middle = top + LANE / 2;
  return h("g", { "data-key": one.peer, "data-tip": `${title(one.peer, facts)}: ${one.phase || "recovering"}` },
    h("rect", { class: "waiting", x: from, y: middle - 9, width: Math.max(10, to - from), height: 18, rx: 4 }));
}

/** All of it in little, with the window that is looked at. */
function strip(facts) {
  const width = Math.max(seen.width || 900, 480), all = extent(facts), looked = windowOf(facts);
  const scale = scaleOf(all, LABELS, width - LABELS - RIGHT);
  const from = Math.max(LABELS, scale.x(looked.from)), to = Math.min(width - RIGHT, scale.x(looked.to));
  return h("svg", { class: "strip", width, height: 30, viewBox: `0 0 ${width} 30`, "aria-hidden": "true", "data-strip": true },
    h("text", { class: "lane", x: LABELS - 12, y: 19 }, "everything"),
    h("rect", { class: "ground", x: LABELS, y: 5, width: width - LABELS - RIGHT, height: 20, rx: 4 }),
    h("path", { class: "tick", d: facts.recoveries.map((one) => `M${(scale.x(one.noticed_at * 1000) - 1).toFixed(1)} 8h${Math.max(2, one.total_ms * scale.perMs).toFixed(1)}v14h-${Math.max(2, one.total_ms * scale.perMs).toFixed(1)}z`).join("") }),
    h("rect", { class: "looked", x: from, y: 4, width: Math.max(6, to - from), height: 22, rx: 4 }));
}

// What is asked for one recovery alone: who had to wait for it.
const whole = { id: null, said: null };

async function askForWhole(id) {
  Object.assign(whole, { id, said: null });
  const answer = await fetch(`recovery?${new URLSearchParams({ id })}`).catch(() => null);
  if (whole.id !== id || !answer?.ok) return;
  whole.said = await answer.json();
  show();
}

function affected(one, facts) {
  if (whole.id !== one.id) askForWhole(one.id);
  const { said } = whole;
  if (!said) return null;
  return [said.history_ends === null ? null : [h("dt", {}, "history ends"), h("dd", {}, `at index ${said.history_ends.toLocaleString("en")} of its log`)],
    said.affected.length ? [h("dt", {}, "had to wait"), h("dd", {}, said.affected.slice(0, 8).map((peer) => h("button", { class: "link", "data-peer": peer }, title(peer, facts))),
      said.affected.length > 8 ? `and ${said.affected.length - 8} more` : null)] : null];
}

function details(one, facts) {
  const together = facts.recoveries.filter((other) => other.round === one.round && other !== one);
  return h("section", { class: "panel details", "aria-label": "One recovery", "data-key": "details" },
    h("header", {}, h("h2", {}, `${title(one.peer, facts)}: life ${one.incarnation - 1} died, life ${one.incarnation} took over`), h("span", { class: "grow" }),
      h("button", { class: "plain", "data-step": "-1" }, "previous (p)"), h("button", { class: "plain", "data-step": "1" }, "next (n)")),
    h("div", { class: "facts" },
      h("dl", { class: "figures" },
        [["noticed", `${moment(one.noticed_at)}: ${one.reason}`], ["back after", h("b", {}, duration(one.total_ms))], ["round", one.round],
          ["replayed", [many(one.replayed, "entry", "entries"), one.replayed_calls ? many(one.replayed_calls, "call", "calls") : "", one.restored_bytes ? `after a checkpoint of ${bytes(one.restored_bytes)}` : ""].filter(Boolean).join(", ")], ["in", [one.host, one.pid ? `process ${one.pid}` : ""].filter(Boolean).join(", ")],
          ["peer", h("button", { class: "link mono", "data-peer": one.peer }, one.peer)]]
          .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
        affected(one, facts),
        together.length ? [h("dt", {}, "together with"), h("dd", {}, together.map((other) => h("button", { class: "link", "data-recovery": other.id }, `${title(other.peer, facts)} (${duration(other.total_ms)})`)))] : null),
      h("ol", { class: "waterfall" }, spans(one).map(({ phase, from, ms }) => h("li", {}, h("span", {}, h("i", { "data-phase": phase }), phase),
        h("span", { class: "track" }, h("i", { "data-phase": phase, style: { "margin-left": `${100 * from / one.total_ms}%`, width: `${Math.max(0.4, 100 * ms / one.total_ms)}%` } })),
        h("b", {}, duration(ms)), h("span", { class: "soft" }, MEANINGS[phase]))))));
}

// moving

function lookAt(wanted, { smooth = true } = {}) {
  const from = windowOf(indexedFacts()), target = wanted ?? extent(indexedFacts());
  cancelAnimationFrame(seen.moving);
  if (!smooth || matchMedia("(prefers-reduced-motion: reduce)").matches) { seen.window = wanted; show(); return; }
  const began = performance.now();
  const step = (now) => {
    const part = Math.min(1, (now - began) / MOVE_MS), eased = 1 - (1 - part) ** 3;
    // Lengths change by factors, so that every moment of the way looks alike.
    const span = (from.to - from.from) ** (1 - eased) * (target.to - target.from) ** eased;
    const done = from.to - from.from === target.to - target.from ? eased : (span - (from.to - from.from)) / ((target.to - target.from) - (from.to - from.from));
    const left = from.from + (target.from - from.from) * done;
    seen.window = part < 1 ? { from: left, to: left + span } : wanted;
    show();
    if (part < 1) seen.moving = requestAnimationFrame(step);
  };
  seen.moving = requestAnimationFrame(step);
}

let latest = null;
const indexedFacts = () => latest;

function step(direction, state) {
  const all = latest.recoveries;
  if (!all.length) return;
  const at = all.findIndex((one) => one.id === state.where.get("recovery"));
  const next = at < 0 ? (direction > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + direction));
  if (next === at) lookAt(around(all[at]));
  else go({ recovery: all[next].id });
}

const attached = new WeakSet();

function attach(element) {
  if (attached.has(element)) return;
  attached.add(element);
  element.addEventListener("wheel", (event) => {
    if (event.shiftKey) return;
    event.preventDefault();
    const scale = scaleOf(windowOf(latest), LABELS, seen.width - LABELS - RIGHT);
    const x = event.clientX - element.getBoundingClientRect().left;
    const looked = windowOf(latest);
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    lookAt(sideways ? moved(looked, event.deltaX / seen.width) : zoomed(looked, Math.exp(event.deltaY * 0.0022), scale.at(Math.max(LABELS, x))), { smooth: false });
  }, { passive: false });
  let held = null;
  element.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, window: windowOf(latest), strip: event.target.closest("[data-strip]"), moved: false };
  });
  element.addEventListener("pointermove", (event) => {
    if (!held || !event.buttons) { held = null; return; }
    const by = event.clientX - held.x;
    if (Math.abs(by) < 4 && !held.moved) return;
    held.moved = true;
    element.setPointerCapture(event.pointerId);
    const width = seen.width - LABELS - RIGHT, all = extent(latest);
    const ms = held.strip ? by * (all.to - all.from) / width : -by * (held.window.to - held.window.from) / width;
    lookAt({ from: held.window.from + ms, to: held.window.to + ms }, { smooth: false });
  });
  element.addEventListener("pointerup", () => { held = null; });
  element.addEventListener("click", (event) => {
    const wanted = event.target.closest("[data-zoom]")?.dataset.zoom;
    if (wanted === "all") lookAt(null);
    else if (wanted) lookAt(zoomed(windowOf(latest), Number(wanted), middle()));
  });
  new ResizeObserver(() => { if (seen.width !== element.clientWidth) { seen.width = element.clientWidth; show(); } }).observe(element);
}

const middle = () => { const { from, to } = windowOf(latest); return (from + to) / 2; };

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-step]");
  if (button) step(Number(button.dataset.step), { where: new URLSearchParams(location.hash.slice(1)) });
});

export const timeline = {
  show(state) {
    const facts = latest = indexed(state.facts);
    const chosen = facts.recoveries.find((one) => one.id === state.where.get("recovery"));
    const any = facts.recoveries.length + facts.under_way.length;
    return [h("section", { class: "panel timeline", "aria-label": "Timeline", "data-key": "timeline" },
      h("header", {}, h("h2", {}, "Failures and recoveries"), legend(), h("span", { class: "grow" }),
        any ? h("div", { class: "zoom" }, h("button", { class: "plain", "data-zoom": "2", "aria-label": "Zoom out (−)", title: "Zoom out (−)" }, "−"), h("button", { class: "plain", "data-zoom": "0.5", "aria-label": "Zoom in (+)", title: "Zoom in (+)" }, "+"),
          h("button", { class: "plain", "data-zoom": "all", title: "Everything (0)" }, "all")) : null),
      any ? h("div", { class: "plot" }, h("div", { class: "scroll" }, chart(facts, chosen?.id)), strip(facts)) : h("p", { class: "empty" }, facts.no_recoveries)),
    chosen ? details(chosen, facts) : any ? h("p", { class: "hint", "data-key": "hint" }, "Choose a recovery, or press ", h("kbd", {}, "n"), ". Wheel, ", h("kbd", {}, "+"), " and ", h("kbd", {}, "−"), " zoom; ", h("kbd", {}, "←"), " and ", h("kbd", {}, "→"), " go through time; ", h("kbd", {}, "0"), " is everything.") : null];
  },

  drawn(main, state) {
    const panel = main.querySelector(".timeline");
    if (!panel) return;
    attach(panel);
    const chosen = state.where.get("recovery");
    if (chosen === seen.focused) return;
    seen.focused = chosen;
    const one = latest.recoveries.find((other) => other.id === chosen);
    if (!one) return;
    main.querySelector(".chart .recovery.chosen")?.scrollIntoView({ block: "nearest" });
    lookAt(around(one));
  },

  key(event, state) {
    const looked = latest && windowOf(latest);
    const act = {
      "+": () => lookAt(zoomed(looked, 0.5, middle())), "=": () => lookAt(zoomed(looked, 0.5, middle())),
      "-": () => lookAt(zoomed(looked, 2, middle())), "0": () => lookAt(null),
      ArrowLeft: () => lookAt(moved(looked, -0.2)), ArrowRight: () => lookAt(moved(looked, 0.2)),
      n: () => step(1, state), p: () => step(-1, state),
    }[event.key];
    if (!looked || !act) return false;
    act();
    return true;
  },
};
