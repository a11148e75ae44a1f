// Peers: how they are named, and the table of them.

import { h } from "./dom.js";
import { bytes, count, natural, rate, runOf, shortName } from "./format.js";
import { curve, history } from "./rates.js";

export const LEFT = new Set(["killed", "retired", "gone"]);
const FIRST = { recovering: 0, starting: 1, away: 2, alive: 3 };

/** What to call a peer: an actor by the name that its program gave it, a driver by its script. */
export function title(peer, facts) {
  const found = facts.byId.get(peer);
  if (found?.name) return found.name;
  const run = facts.runs.find((one) => one.run === peer);
  return run?.entrypoint ? run.entrypoint.split(" ")[0].split("/").pop() : shortName(peer);
}

export function indexed(facts) {
  facts.byId ??= new Map(facts.peers.map((peer) => [peer.peer, peer]));
  return facts;
}

export const dot = (state) => h("i", { class: "dot", "data-state": state, "aria-hidden": "true" });

/** The peers that are looked for, those in need first. */
export function chosenPeers(facts, where) {
  const wanted = (where.get("find") ?? "").toLowerCase();
  const all = where.get("left") === "yes" || !facts.source.live;
  return facts.peers
    .filter((peer) => all || !LEFT.has(peer.state))
    .filter(
      (peer) =>
        !wanted ||
        [peer.peer, peer.class_name, peer.name, peer.node, peer.state].join(" ").toLowerCase().includes(wanted),
    )
    .sort(
      (one, other) =>
        (FIRST[one.state] ?? 4) - (FIRST[other.state] ?? 4) ||
        natural(runOf(one.peer), runOf(other.peer)) ||
        (one.kind === "driver" ? -1 : 0) - (other.kind === "driver" ? -1 : 0) ||
        natural(one.peer, other.peer),
    );
}

export function peersPanel(state) {
  const { where } = state,
    facts = indexed(state.facts);
  const shown = chosenPeers(facts, where);
  const gone = facts.totals.peers - facts.peers.filter((peer) => !LEFT.has(peer.state)).length;
  return h(
    "section",
    { class: "panel peers", "aria-label": "Peers" },
    h(
      "header",
      {},
      h("h2", {}, "Peers"),
      h("span", { class: "soft" }, `${shown.length} of ${facts.totals.peers}`),
      h("span", { class: "grow" }),
      facts.source.live && gone
        ? h(
            "label",
            { class: "check" },
            h("input", { type: "checkbox", name: "left", checked: where.get("left") === "yes" }),
            `${gone} that left`,
          )
        : null,
      h("input", {
        type: "search",
        name: "find",
        placeholder: "find  /",
        "aria-label": "Find peers",
        value: where.get("find") ?? "",
      }),
    ),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "rows" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", {}, "peer"),
            h("th", {}, "state"),
            h("th", { class: "number" }, "life"),
            facts.source.live ? h("th", {}, "node") : null,
            h("th", { class: "number" }, facts.source.live ? "lag" : "entries"),
            h("th", { class: "number" }, facts.source.live ? "stash" : "kept"),
            facts.source.live
              ? [h("th", { class: "number" }, "calls"), h("th", {})]
              : h("th", { class: "number" }, "checkpoint"),
          ),
        ),
        h(
          "tbody",
          {},
          shown.length
            ? shown.map((peer, position) => row(peer, position, facts, where))
            : h(
                "tr",
                {},
                h(
                  "td",
                  { colspan: 8, class: "empty" },
                  facts.peers.length ? "nobody is called that" : "nobody takes part",
                ),
              ),
        ),
      ),
    ),
  );
}

function row(peer, position, facts, where) {
  const chosen = where.get("peer") === peer.peer;
  return h(
    "tr",
    {
      "data-key": peer.peer,
      "data-row": true,
      "data-peer": peer.peer,
      "data-state": peer.state,
      tabindex: position === 0 ? "0" : "-1",
      "aria-selected": String(chosen),
    },
    h(
      "td",
      {},
      h(
        "span",
        { class: "name" },
        dot(peer.state),
        h("b", {}, title(peer.peer, facts)),
        h("span", { class: "soft" }, peer.kind === "driver" ? "driver" : peer.name ? peer.class_name : ""),
      ),
    ),
    h(
      "td",
      { class: `state ${peer.state}` },
      peer.is_held_back ? "held back" : peer.is_replaying ? "replaying" : peer.state,
    ),
    h(
      "td",
      { class: "number" },
      peer.incarnation,
      peer.recovered
        ? h("span", { class: "times", "data-tip": `recovered ${peer.recovered} times` }, ` ↻${peer.recovered}`)
        : null,
    ),
    facts.source.live ? h("td", { class: "soft mono" }, peer.node.slice(0, 8)) : null,
    ...(facts.source.live ? liveCells(peer) : keptCells(peer)),
  );
}

function liveCells(peer) {
  return [
    h("td", { class: "number" }, count(peer.lag)),
    h("td", { class: "number" }, meter(peer.stash_bytes, peer.stash_cap_bytes), bytes(peer.stash_bytes)),
    h("td", { class: "number" }, rate(peer.calls_per_s)),
    h(
      "td",
      { class: "curve" },
      h("svg", { viewBox: "0 0 60 16", "aria-hidden": "true" }, h("path", { d: curve(history.of(peer.peer), 60, 16) })),
    ),
  ];
}

function keptCells(peer) {
  return [
    h("td", { class: "number" }, count(peer.upper)),
    h("td", { class: "number" }, bytes(peer.held_bytes)),
    h("td", { class: "number" }, peer.checkpointed ? `to ${count(peer.checkpointed)}` : "–"),
  ];
}

export function meter(value, most) {
  if (!most || value === null || value === undefined) return null;
  const part = Math.min(1, value / most);
  return h(
    "span",
    { class: "meter", "data-tip": `${bytes(value)} of at most ${bytes(most)}` },
    h("i", {
      class: part > 0.8 ? "bad" : part > 0.5 ? "warn" : "",
      style: { width: `${Math.max(part * 100, part ? 4 : 0)}%` },
    }),
  );
}
