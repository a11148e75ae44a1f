// Causes: the causal past of a call. Time goes from left to right, each peer has a lane, and every arrow leads from a
// cause to its effect.

import { go, show } from "./app.js";
import { h } from "./dom.js";
import { cut, natural, plural, shortName } from "./format.js";
import { indexed, title } from "./peers.js";
import { placeGraph } from "./dataflow.js";

const BOX = { width: 176, height: 38 };
const GAP = { x: 44, y: 12 };
const LEFT = 22;
const MOST_SHRUNK = 1.3;

const EDGES = {
  called: "called",
  order: "ran after, in the same log",
  heard: "heard of: a reply or a value",
  read: "was given a partition",
};

const asked = { call: null, past: null, failure: "", busy: false, shown: null };

async function ask(call) {
  Object.assign(asked, { call, past: null, failure: "", busy: true });
  try {
    const answer = await fetch(`past?${new URLSearchParams({ call })}`);
    const said = await answer.json();
    if (asked.call !== call) return;
    if (answer.ok) asked.past = said;
    else asked.failure = said.error;
  } catch (error) {
    asked.failure = error.message;
  }
  asked.busy = false;
  show();
}

// where things are

/** Columns: every effect is to the right of its causes. */
function columnsOf(past) {
  const column = new Map(past.nodes.map((node) => [node.id, 0]));
  for (let round = 0; round < past.nodes.length; round += 1) {
    let moved = false;
    for (const { cause, effect } of past.edges) {
      if (column.has(cause) && column.has(effect) && column.get(effect) <= column.get(cause)) {
        column.set(effect, column.get(cause) + 1);
        moved = true;
      }
    }
    if (!moved) break;
  }
  // A cause is as near to its first effect as it can be.
  for (let round = 0; round < past.nodes.length; round += 1) {
    let moved = false;
    for (const node of past.nodes) {
      const after = past.edges.filter((edge) => edge.cause === node.id).map((edge) => column.get(edge.effect) - 1);
      const latest = after.length ? Math.min(...after) : column.get(node.id);
      if (latest > column.get(node.id)) {
        column.set(node.id, latest);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return column;
}

function placesOf(past) {
  const column = columnsOf(past),
    root = past.nodes.find((node) => node.id === past.root);
  const lanes = [...new Set(past.nodes.map((node) => node.peer))].sort(
    (one, other) => (one === root.peer) - (other === root.peer) || natural(one, other),
  );
  const taken = new Map(),
    depth = new Map(lanes.map((peer) => [peer, 1])),
    row = new Map();
  for (const node of past.nodes) {
    const cell = `${node.peer} ${column.get(node.id)}`,
      position = taken.get(cell) ?? 0;
    taken.set(cell, position + 1);
    row.set(node.id, position);
    depth.set(node.peer, Math.max(depth.get(node.peer), position + 1));
  }
  const tops = new Map();
  let y = 8;
  for (const peer of lanes) {
    tops.set(peer, y);
    y += depth.get(peer) * (BOX.height + GAP.y) + 14;
  }
  const places = new Map(
    past.nodes.map((node) => [
      node.id,
      {
        x: LEFT + column.get(node.id) * (BOX.width + GAP.x),
        y: tops.get(node.peer) + 7 + row.get(node.id) * (BOX.height + GAP.y),
      },
    ]),
  );
  const width = LEFT + (Math.max(...column.values()) + 1) * (BOX.width + GAP.x);
  return { lanes, tops, places, depth, width, height: y };
}

// drawing

function picture(past, chosen) {
  const { lanes, tops, places, depth, width, height } = placesOf(past);
  return h(
    "div",
    { class: "canvas wide" },
    h(
      "svg",
      {
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "group",
        class: "past",
        style: { "max-width": `max(100%, ${width / MOST_SHRUNK}px)` },
        "aria-label": `${plural(past.nodes.length, "node")} of the past of ${past.asked}`,
      },
      h(
        "g",
        { class: "lanes" },
        lanes.map((peer) =>
          h(
            "g",
            { "data-key": peer },
            h("rect", {
              class: "band",
              x: 0,
              y: tops.get(peer),
              width,
              height: depth.get(peer) * (BOX.height + GAP.y) + 4,
              rx: 8,
            }),
          ),
        ),
      ),
      h(
        "g",
        { class: "arrows" },
        past.edges.map((edge) => arrowOf(edge, places)),
      ),
      h(
        "g",
        { class: "boxes" },
        past.nodes.map((node) => boxOf(node, places.get(node.id), past, chosen)),
      ),
    ),
  );
}

function arrowOf({ cause, effect, kind }, places) {
  const from = places.get(cause),
    to = places.get(effect);
  const x1 = from.x + BOX.width,
    y1 = from.y + BOX.height / 2,
    x2 = to.x - 7,
    y2 = to.y + BOX.height / 2;
  const bend = Math.max(18, (x2 - x1) / 2);
  return h(
    "g",
    {
      class: `arrow ${kind}`,
      "data-key": `${cause}→${effect}`,
      "data-tip": EDGES[kind] ?? kind,
      style: { "--wide": kind === "called" ? "2" : "1.4" },
    },
    h("path", { class: "reach", d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }),
    h("path", {
      class: "line",
      d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
      "marker-end": "url(#tip-of-arrow)",
    }),
  );
}

function boxOf(node, at, past, chosen) {
  const root = node.id === past.root;
  return h(
    "g",
    {
      class: `box cause ${node.kind}${root ? " root" : ""}${node.id === chosen ? " chosen" : ""}`,
      "data-key": node.id,
      "data-node": node.id,
      tabindex: "0",
      role: "button",
      "aria-label": `${node.title}, ${node.id}`,
      "data-tip": node.title,
      transform: `translate(${at.x} ${at.y})`,
    },
    h("rect", { width: BOX.width, height: BOX.height, rx: 7 }),
    h("text", { x: 11, y: 16 }, cut(words(node), 22)),
    h(
      "text",
      { x: 11, y: 30, class: "soft" },
      node.at === null
        ? shortName(node.peer)
        : [`${cut(shortName(node.peer), 16)} : ${node.at}`, node.details.length ? `${node.details.length} read` : ""]
            .filter(Boolean)
            .join(" · "),
    ),
  );
}

const words = (node) =>
  node.kind === "end" ? node.title.replace(node.peer, "").replace(/^,? ?(which )?/, "") || "began" : node.title;

function details(past, id, facts) {
  const node = past.nodes.find((one) => one.id === id) ?? past.nodes.find((one) => one.id === past.root);
  const causes = past.edges.filter((edge) => edge.effect === node.id);
  const name = (other) => past.nodes.find((one) => one.id === other)?.title ?? other;
  return h(
    "aside",
    { class: "panel details", "aria-label": "What was chosen", "data-key": "chosen" },
    h("h3", {}, node.title),
    h("p", { class: "mono soft" }, node.call || node.id),
    node.details.length
      ? [
          h("h4", {}, "meanwhile"),
          h(
            "ol",
            {},
            node.details.map((text) => h("li", {}, text)),
          ),
        ]
      : null,
    causes.length
      ? [
          h("h4", {}, "because"),
          h(
            "ul",
            {},
            causes.map((edge) =>
              h(
                "li",
                {},
                h("span", { class: `kind ${edge.kind}` }, edge.kind),
                " ",
                h("button", { class: "link", "data-node": edge.cause }, name(edge.cause)),
              ),
            ),
          ),
        ]
      : null,
    h(
      "p",
      { class: "actions" },
      node.at !== null && node.id !== past.root
        ? h("button", { class: "plain", "data-call": node.id }, "the past of this")
        : null,
      facts.byId.has(node.peer)
        ? h("button", { class: "plain", "data-peer": node.peer }, title(node.peer, facts))
        : null,
    ),
  );
}

function choices(facts) {
  const some = facts.peers.filter((peer) => peer.upper > (peer.base ?? 0)).slice(0, 60);
  if (!some.length)
    return h(
      "p",
      { class: "empty" },
      facts.source.live ? "No log has an entry yet." : "No log has an entry left: checkpoints cover all of them.",
    );
  return h(
    "div",
    { class: "choices" },
    h("p", {}, "Ask about a call, as logs name it, or begin with the last entry of a peer:"),
    h(
      "ul",
      {},
      some.map((peer) =>
        h(
          "li",
          { "data-key": peer.peer },
          h(
            "button",
            { class: "chip", "data-call": `${peer.peer}:${Math.max(0, (peer.durable ?? peer.upper) - 1)}` },
            title(peer.peer, facts),
            h("span", { class: "soft" }, ` at ${Math.max(0, (peer.durable ?? peer.upper) - 1)}`),
          ),
        ),
      ),
    ),
  );
}

function legend() {
  return h(
    "ul",
    { class: "legend edges" },
    Object.entries(EDGES).map(([kind, text]) => h("li", { "data-tip": text }, h("i", { class: kind }), kind)),
  );
}

export const causes = {
  show(state) {
    const facts = indexed(state.facts),
      call = state.where.get("call"),
      { past, failure, busy } = asked;
    return [
      h(
        "section",
        { class: "panel causes", "aria-label": "Causes", "data-key": "causes" },
        h(
          "header",
          {},
          h("h2", {}, "Causes"),
          h(
            "form",
            { class: "ask" },
            h("input", {
              id: "call",
              type: "search",
              "aria-label": "A call",
              spellcheck: "false",
              placeholder: "PEER:INDEX or CALLER->CALLEE#SEQNO",
              value: call ?? "",
            }),
          ),
          past ? legend() : null,
          h("span", { class: "grow" }),
          past?.cut ? h("span", { class: "soft" }, `and ${plural(past.cut, "cause")} further away`) : null,
          call ? h("button", { class: "plain", "data-forget": true }, "another") : null,
        ),
        !call
          ? choices(facts)
          : failure
            ? h("p", { class: "empty bad" }, failure)
            : busy || !past
              ? h("p", { class: "empty" }, "Reading logs …")
              : picture(past, state.where.get("node") ?? past.root),
      ),
      call && past ? details(past, state.where.get("node"), facts) : null,
    ];
  },

  drawn(main, state) {
    placeGraph(main);
    const call = state.where.get("call");
    if (call && call !== asked.call) ask(call);
    const canvas = main.querySelector(".canvas.wide");
    if (canvas && asked.past && asked.shown !== asked.call) {
      asked.shown = asked.call;
      canvas.scrollLeft = canvas.scrollWidth;
    }
    const field = main.querySelector("#call");
    if (document.activeElement !== field) field.value = call ?? "";
  },
};

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form.ask")) return;
  event.preventDefault();
  go({ call: event.target.querySelector("input").value.trim(), node: null });
});
document.addEventListener("click", (event) => {
  const node = event.target.closest("[data-node]");
  if (node) go({ node: node.dataset.node }, { replace: true });
  if (event.target.closest("[data-forget]")) go({ call: null, node: null });
});
