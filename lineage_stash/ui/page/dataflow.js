// The dataflow: who calls whom, and how often. Many peers of one class are one box with a dot for each of them.

import { go } from "./app.js";
import { h } from "./dom.js";
import { count, cut, natural, plural, rate, runOf } from "./format.js";
import { inLayers } from "./layers.js";
import { LEFT, indexed, title } from "./peers.js";

const MOST_BOXES = 14;
const BOX = { width: 148, height: 46 };
const DOTS_IN_A_ROW = 10;
const DOT = 13;
const MANY_ARROWS = 60;

// Whose arrows are to stand out, where there are too many to tell them apart.
let lit = null;

/** The boxes and arrows to draw: peers by themselves, or by class where that would be too many. */
function drawn(facts, grouping) {
  const active = new Set(facts.flows.flatMap((flow) => [flow.caller, flow.callee]));
  const peers = facts.peers.filter((peer) => !LEFT.has(peer.state) || active.has(peer.peer));
  const groups = new Map();
  for (const peer of peers) {
    const key = peer.kind === "driver" ? peer.peer : `${runOf(peer.peer)} ${peer.class_name}`;
    groups.set(key, [...(groups.get(key) ?? []), peer]);
  }
  const grouped = grouping === "yes" || (grouping !== "no" && peers.length > MOST_BOXES);
  const box = new Map(),
    boxes = new Map();
  for (const [key, members] of groups) {
    const together = grouped && members.length > 1;
    for (const peer of members) {
      const id = together ? key : peer.peer;
      box.set(peer.peer, id);
      boxes.set(id, { id, members: [...(boxes.get(id)?.members ?? []), peer] });
    }
  }
  return { boxes: [...boxes.values()], arrows: arrowsBetween(facts.flows, box), grouped };
}

function arrowsBetween(flows, box) {
  const arrows = new Map();
  for (const flow of flows) {
    const from = box.get(flow.caller),
      to = box.get(flow.callee);
    if (!from || !to) continue;
    const arrow = arrows.get(`${from}→${to}`) ?? { from, to, calls: 0, per_s: null };
    arrow.calls += flow.calls;
    if (flow.per_s !== null) arrow.per_s = (arrow.per_s ?? 0) + flow.per_s;
    arrows.set(`${from}→${to}`, arrow);
  }
  return [...arrows.values()];
}

function sized(box) {
  if (box.members.length === 1) return { id: box.id, ...BOX, first: box.members[0].kind === "driver" };
  const rows = Math.ceil(box.members.length / DOTS_IN_A_ROW);
  return { id: box.id, width: DOTS_IN_A_ROW * DOT + 24, height: 40 + rows * DOT + 6, first: false };
}

export function graphPanel(state, { small }) {
  const facts = indexed(state.facts);
  const { boxes, arrows, grouped } = drawn(facts, state.where.get("classes"));
  return h(
    "section",
    { class: `panel graph${small ? " small" : ""}`, "aria-label": "Dataflow" },
    h(
      "header",
      {},
      h("h2", {}, "Dataflow"),
      h("span", { class: "soft" }, "who calls whom"),
      h("span", { class: "grow" }),
      small
        ? h("a", { href: "#view=dataflow", "data-go": "dataflow" }, "larger")
        : h(
            "button",
            { class: "plain", "data-grouping": grouped ? "no" : "yes", "data-own-action": true },
            grouped ? "every peer (g)" : "by class (g)",
          ),
    ),
    boxes.length ? picture(facts, boxes, arrows, small) : h("p", { class: "empty" }, "Nobody takes part."),
  );
}

function picture(facts, boxes, arrows, small) {
  const room = small ? 1.6 : (innerWidth - 60) / Math.max(320, innerHeight - 220);
  const nodes = boxes.map(sized);
  const { places, width, height } = bestLayout(nodes, arrows, room);
  const busiest = Math.max(...arrows.map((arrow) => arrow.per_s ?? arrow.calls), 1);
  const margin = 26;
  return h(
    "div",
    { class: "canvas" },
    h(
      "svg",
      {
        viewBox: `${-margin} ${-margin} ${width + 2 * margin} ${height + 2 * margin}`,
        role: "group",
        "aria-label": `${boxes.length} boxes, ${plural(arrows.length, "flow")}`,
        style: { "max-width": `${(width + 2 * margin) * (small ? 1 : 1.35)}px` },
      },
      h(
        "g",
        { class: `arrows${arrows.length > MANY_ARROWS ? " many" : ""}` },
        arrows.map((arrow) => arrowOf(arrow, places, busiest)),
      ),
      h(
        "g",
        { class: "boxes" },
        boxes.map((box) => boxOf(box, places.get(box.id), facts)),
      ),
      h("g", { class: "labels" }, arrows.length <= 40 ? arrows.map((arrow) => labelOf(arrow, places)) : null),
    ),
  );
}

/** Columns as tall as it takes for the whole to have the shape of the room. */
function bestLayout(nodes, arrows, room) {
  let best = null;
  for (const most of [4, 6, 8, 12, 18, 28]) {
    const layout = inLayers(nodes, arrows, { most, gapX: 104 });
    const misfit = Math.max(layout.width / room, layout.height);
    if (!best || misfit < best.misfit - 1) best = { ...layout, misfit };
  }
  return best;
}

function boxOf(box, at, facts) {
  if (box.members.length > 1) return groupOf(box, at, facts);
  const [peer] = box.members;
  const lives = peer.incarnation ? `life ${peer.incarnation}` : "";
  return h(
    "g",
    {
      class: "box",
      "data-key": box.id,
      "data-peer": peer.peer,
      "data-state": peer.state,
      tabindex: "0",
      role: "button",
      "aria-label": `${title(peer.peer, facts)}, ${peer.state}`,
      transform: `translate(${at.x.toFixed(1)} ${at.y.toFixed(1)})`,
    },
    h("rect", { width: at.width, height: at.height, rx: 8 }),
    h("rect", { class: "mark", width: 4, height: at.height - 16, x: 7, y: 8, rx: 2 }),
    h("text", { x: 19, y: 20 }, cut(title(peer.peer, facts), 17)),
    h(
      "text",
      { x: 19, y: 36, class: "soft" },
      [peer.kind === "driver" ? "driver" : peer.state === "alive" ? rate(peer.calls_per_s) : peer.state, lives]
        .filter(Boolean)
        .join(" · "),
    ),
  );
}

function groupOf(box, at, facts) {
  const members = [...box.members].sort((one, other) => natural(one.peer, other.peer));
  const [first] = members;
  return h(
    "g",
    { class: "box group", "data-key": box.id, transform: `translate(${at.x.toFixed(1)} ${at.y.toFixed(1)})` },
    h("rect", { width: at.width, height: at.height, rx: 8 }),
    h("text", { x: 12, y: 22 }, cut(first.class_name || title(first.peer, facts), 13)),
    h("text", { x: at.width - 12, y: 22, class: "soft end" }, `× ${members.length}`),
    members.map((peer, position) =>
      h("circle", {
        class: "member",
        "data-key": peer.peer,
        "data-peer": peer.peer,
        "data-state": peer.state,
        "data-tip": [
          title(peer.peer, facts),
          peer.state,
          peer.incarnation ? `life ${peer.incarnation}` : "",
          peer.calls_per_s === null ? "" : rate(peer.calls_per_s),
        ]
          .filter(Boolean)
          .join(", "),
        tabindex: "0",
        role: "button",
        "aria-label": `${title(peer.peer, facts)}, ${peer.state}`,
        cx: 12 + DOT / 2 + (position % DOTS_IN_A_ROW) * DOT,
        cy: 38 + Math.floor(position / DOTS_IN_A_ROW) * DOT,
        r: peer.state === "alive" ? 4.2 : 5,
      }),
    ),
  );
}

function ends(arrow, places) {
  const from = places.get(arrow.from),
    to = places.get(arrow.to);
  if (arrow.from === arrow.to) {
    const x = from.x + from.width / 2,
      y = from.y;
    return {
      self: true,
      path: `M${x - 16} ${y} C${x - 26} ${y - 30} ${x + 26} ${y - 30} ${x + 16} ${y}`,
      label: [x, y - 16],
    };
  }
  const back = to.x <= from.x;
  if (back && Math.abs(to.x - from.x) < 1) return beside(from, to);
  const [x1, x2] = back ? [from.x, to.x + to.width] : [from.x + from.width, to.x];
  const y1 = from.y + from.height / 2 + (back ? 9 : -3),
    y2 = to.y + to.height / 2 + (back ? 9 : -3);
  const bend = Math.max(36, Math.abs(x2 - x1) / 2) * (back ? -1 : 1);
  const tip = back ? x2 + 7 : x2 - 7;
  return {
    path: `M${x1} ${y1} C${x1 + bend} ${y1} ${tip - bend} ${y2} ${tip} ${y2}`,
    label: [(x1 + x2) / 2, (y1 + y2) / 2],
  };
}

/** Between two of one column, around their right side. */
function beside(from, to) {
  const x = Math.max(from.x + from.width, to.x + to.width),
    y1 = from.y + from.height / 2,
    y2 = to.y + to.height / 2;
  const out = 24 + Math.abs(y2 - y1) / 8;
  return {
    path: `M${from.x + from.width} ${y1} C${x + out} ${y1} ${x + out} ${y2} ${to.x + to.width + 7} ${y2}`,
    label: [x + out * 0.75, (y1 + y2) / 2],
  };
}

function arrowOf(arrow, places, busiest) {
  const weight = (arrow.per_s ?? arrow.calls) / busiest;
  const moving = arrow.per_s > 0;
  const { path } = ends(arrow, places);
  return h(
    "g",
    {
      "data-key": `${arrow.from}→${arrow.to}`,
      class: `arrow${moving ? " moving" : ""}${[arrow.from, arrow.to].includes(lit) ? " lit" : ""}`,
      "data-tip": `${count(arrow.calls)} calls${arrow.per_s === null ? "" : `, ${rate(arrow.per_s)}`}`,
      style: { "--wide": (1.2 + 3 * Math.sqrt(weight)).toFixed(2) },
    },
    h("path", { class: "reach", d: path }),
    h("path", { class: "line", d: path, "marker-end": "url(#tip-of-arrow)" }),
  );
}

function labelOf(arrow, places) {
  const [x, y] = ends(arrow, places).label;
  const words = arrow.per_s ? rate(arrow.per_s) : count(arrow.calls);
  const width = words.length * 6.3 + 10;
  return h(
    "g",
    {
      class: "label",
      "data-key": `${arrow.from}→${arrow.to}`,
      transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
    },
    h("rect", { x: -width / 2, y: -8.5, width, height: 17, rx: 8.5 }),
    h("text", { y: 3.8 }, words),
  );
}

const marker = () =>
  h(
    "defs",
    { "data-key": "defs" },
    h(
      "marker",
      {
        id: "tip-of-arrow",
        viewBox: "0 0 8 8",
        refX: "2",
        refY: "4",
        markerWidth: "8",
        markerHeight: "8",
        markerUnits: "userSpaceOnUse",
        orient: "auto",
      },
      h("path", { d: "M0 0.5 L7.5 4 L0 7.5 z" }),
    ),
  );

/** What all pictures with arrows need once. */
export function placeGraph(main) {
  if (!document.getElementById("tip-of-arrow")) {
    const svg = h("svg", { class: "unseen", "aria-hidden": "true" }, marker());
    document.body.append(svg);
  }
  main.querySelector("[data-grouping]")?.addEventListener("click", toggle, { once: true });
}

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const over = event.target.closest?.(".graph .box")?.dataset.key ?? null;
    if (over !== lit) {
      lit = over;
      for (const arrow of document.querySelectorAll(".graph .arrow"))
        arrow.classList.toggle("lit", over !== null && arrow.dataset.key.split("→").includes(over));
    }
  });
}

const toggle = (event) => go({ classes: event.currentTarget.dataset.grouping }, { replace: true });

export const dataflow = {
  show: (state) => graphPanel(state, { small: false }),
  drawn: placeGraph,
  key(event, state) {
    if (event.key !== "g") return false;
    go({ classes: drawn(indexed(state.facts), state.where.get("classes")).grouped ? "no" : "yes" }, { replace: true });
    return true;
  },
};
