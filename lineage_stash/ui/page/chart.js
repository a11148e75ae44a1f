// The chart of the timeline: lanes of peers, recoveries by phase, rounds, and all of it in little. It draws what it is
// given, and knows nothing else.

import { h } from "./dom.js";
import { clock, cut, duration, natural } from "./format.js";
import { title } from "./peers.js";
import { MEANINGS, spans } from "./phases.js";
import { extent, scaleOf, ticks } from "./scale.js";

const LANE = 28;
const AXIS = 26;
const NARROW_PX = 10;
export const LABELS = 190;
export const RIGHT = 18;

function lanesOf(facts) {
  const failed = new Set([...facts.recoveries, ...facts.under_way].map((one) => one.peer));
  return [...failed].sort(natural);
}

/** Every lane with its recoveries, in a window of time and so many pixels. */
export function chart(facts, chosen, looked, width) {
  const lanes = lanesOf(facts);
  const plot = width - LABELS - RIGHT;
  const scale = scaleOf(looked, LABELS, plot);
  const height = AXIS + lanes.length * LANE + 8;
  const lane = new Map(lanes.map((peer, position) => [peer, AXIS + position * LANE]));
  const marks = ticks(looked, plot);
  return h(
    "svg",
    {
      class: "chart",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": `Recoveries from ${clock(looked.from, 1)} to ${clock(looked.to, 1)}`,
    },
    h("defs", {}, h("clipPath", { id: "plot" }, h("rect", { x: LABELS, y: 0, width: plot + RIGHT, height }))),
    h(
      "g",
      { class: "lanes" },
      lanes.map((peer) =>
        h(
          "g",
          { "data-key": peer },
          h("rect", { class: "band", x: 0, y: lane.get(peer), width, height: LANE }),
          h(
            "text",
            { class: "lane", x: LABELS - 12, y: lane.get(peer) + LANE / 2 + 4, "data-peer": peer },
            cut(title(peer, facts), 24),
          ),
        ),
      ),
    ),
    h(
      "g",
      { class: "axis", "clip-path": "url(#plot)" },
      marks.at.map((at) =>
        h(
          "g",
          { "data-key": String(at), transform: `translate(${scale.x(at).toFixed(1)} 0)` },
          h("line", { y1: AXIS - 6, y2: height }),
          h("text", { y: 14 }, clock(at, marks.step)),
        ),
      ),
    ),
    h(
      "g",
      { "clip-path": "url(#plot)" },
      h(
        "g",
        { class: "rounds" },
        rounds(facts).map((round) => roundOf(round, lane, scale)),
      ),
      h(
        "g",
        { class: "recoveries" },
        facts.recoveries
          .filter((one) => isSeen(one, looked))
          .map((one) => recoveryOf(one, lane.get(one.peer), scale, one.id === chosen, facts)),
      ),
      h(
        "g",
        { class: "under-way" },
        facts.under_way.map((one) => waitingOf(one, lane.get(one.peer), scale, facts)),
      ),
      facts.source.live
        ? h("line", {
            class: "now",
            x1: scale.x(facts.at * 1000),
            x2: scale.x(facts.at * 1000),
            y1: AXIS - 6,
            y2: height,
          })
        : null,
    ),
  );
}

const isSeen = (one, { from, to }) =>
  one.noticed_at * 1000 <= to && one.noticed_at * 1000 + one.total_ms >= from - (to - from) / 50;

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
  const top = Math.min(...places),
    bottom = Math.max(...places) + LANE;
  return h("rect", {
    "data-key": `round ${round}`,
    x: from - 4,
    y: top + 2,
    width: Math.max(8, to - from + 8),
    height: bottom - top - 4,
    rx: 6,
    "data-tip": `round ${round}: ${members.length} recovered together`,
  });
}

function recoveryOf(one, top, scale, chosen, facts) {
  const start = one.noticed_at * 1000,
    from = scale.x(start),
    width = one.total_ms * scale.perMs;
  const words = `${title(one.peer, facts)}, life ${one.incarnation}: ${duration(one.total_ms)}, ${clock(start, 1)}`;
  const attributes = {
    class: `recovery${chosen ? " chosen" : ""}`,
    "data-key": one.id,
    "data-recovery": one.id,
    tabindex: "0",
    role: "button",
    "aria-label": words,
    "data-tip": width < NARROW_PX ? words : null,
  };
  const middle = top + LANE / 2;
  if (width < NARROW_PX) {
    return h("g", attributes, h("path", { class: "mark", d: `M${from.toFixed(1)} ${middle - 7} l6 7 l-6 7 l-6 -7 z` }));
  }
  return h(
    "g",
    attributes,
    h("rect", { class: "outline", x: from - 2, y: middle - 11, width: width + 4, height: 22, rx: 5 }),
    spans(one).map(({ phase, from: begin, ms }) => {
      const x = from + begin * scale.perMs,
        wide = ms * scale.perMs;
      return [
        h("rect", {
          "data-phase": phase,
          x: x.toFixed(2),
          y: middle - 9,
          width: Math.max(wide, 0.75).toFixed(2),
          height: 18,
          "data-tip": `${phase} ${duration(ms)}: ${MEANINGS[phase]}`,
        }),
        wide > phase.length * 7 + 8
          ? h(
              "text",
              { class: "phase", x: x + wide / 2, y: middle + 4 },
              wide > phase.length * 7 + 58 ? `${phase} ${duration(ms)}` : phase,
            )
          : null,
      ];
    }),
    h("path", { class: "death", d: `M${(from - 4).toFixed(1)} ${middle - 13} h8 l-4 6 z` }),
  );
}

function waitingOf(one, top, scale, facts) {
  const from = scale.x(one.since * 1000),
    to = scale.x(facts.at * 1000),
    middle = top + LANE / 2;
  return h(
    "g",
    { "data-key": one.peer, "data-tip": `${title(one.peer, facts)}: ${one.phase || "recovering"}` },
    h("rect", { class: "waiting", x: from, y: middle - 9, width: Math.max(10, to - from), height: 18, rx: 4 }),
  );
}

/** All of it in little, with the window that is looked at. */
export function strip(facts, looked, width) {
  const all = extent(facts);
  const scale = scaleOf(all, LABELS, width - LABELS - RIGHT);
  const from = Math.max(LABELS, scale.x(looked.from)),
    to = Math.min(width - RIGHT, scale.x(looked.to));
  return h(
    "svg",
    { class: "strip", width, height: 30, viewBox: `0 0 ${width} 30`, "aria-hidden": "true", "data-strip": true },
    h("text", { class: "lane", x: LABELS - 12, y: 19 }, "everything"),
    h("rect", { class: "ground", x: LABELS, y: 5, width: width - LABELS - RIGHT, height: 20, rx: 4 }),
    h("path", { class: "tick", d: facts.recoveries.map((one) => tick(one, scale)).join("") }),
    h("rect", { class: "looked", x: from, y: 4, width: Math.max(6, to - from), height: 22, rx: 4 }),
  );
}

function tick(one, scale) {
  const width = Math.max(2, one.total_ms * scale.perMs).toFixed(1);
  return `M${(scale.x(one.noticed_at * 1000) - 1).toFixed(1)} 8h${width}v14h-${width}z`;
}
