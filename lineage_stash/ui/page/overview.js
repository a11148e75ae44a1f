// The overview: a glance at all, and what is worth a closer look.

import { h } from "./dom.js";
import { ago, bytes, count, duration, moment, plural, rate } from "./format.js";
import { graphPanel, placeGraph } from "./dataflow.js";
import { LEFT, indexed, peersPanel, title } from "./peers.js";
import { phaseBar } from "./phases.js";
import { curve, history } from "./rates.js";

const MOST_RECENT = 6;

function tiles(facts) {
  const here = facts.peers.filter((peer) => !LEFT.has(peer.state));
  const alive = here.filter((peer) => peer.state === "alive").length;
  const waiting = here.length - alive;
  const replicas = facts.services.filter((service) => service.name.startsWith("replica"));
  const up = replicas.filter((service) => service.up).length;
  const last = facts.recoveries.at(-1);
  const { totals } = facts;
  const fullest = totals.stash_cap_bytes ? totals.stash_bytes_most / totals.stash_cap_bytes : 0;
  const files = !facts.source.live;
  return h(
    "section",
    { class: "tiles", "aria-label": "At a glance" },
    files
      ? tile("Peers", totals.peers, plural(facts.runs.length, "run"), "")
      : tile("Peers", alive, waiting ? `${waiting} not up` : "all up", waiting ? "warn" : "good"),
    files
      ? tile("Entries", count(totals.entries), `${count(totals.kept_entries)} after checkpoints`, "")
      : tile(
          "Calls",
          rate(totals.calls_per_s),
          `${count(totals.calls)} so far`,
          "",
          "dataflow",
          h(
            "svg",
            { viewBox: "0 0 120 28", class: "curve", preserveAspectRatio: "none", "aria-hidden": "true" },
            h("path", { d: curve(history.of("total"), 120, 28) }),
          ),
        ),
    files
      ? tile("Kept", bytes(totals.held_bytes), "in one copy", "")
      : tile(
          "Uncommitted",
          count(totals.lag),
          totals.lag_most ? `most: ${title(totals.lag_most, facts)}` : "all is durable",
          "",
        ),
    files
      ? null
      : tile(
          "Stash",
          bytes(totals.stash_bytes_most),
          `the fullest; cap ${bytes(totals.stash_cap_bytes)}`,
          fullest > 0.8 ? "bad" : fullest > 0.5 ? "warn" : "",
        ),
    tile(
      "Recoveries",
      totals.recoveries,
      last
        ? `last ${files ? "" : `${ago(facts.at - last.noticed_at)} `}in ${duration(last.total_ms)}`
        : facts.no_recoveries.split(/[.:]/)[0],
      "",
      "timeline",
    ),
    tile(
      "Replicas",
      `${up}/${replicas.length}`,
      files ? "folders that were read" : `durability ${facts.durability ?? "–"}`,
      up === replicas.length ? "good" : "bad",
      "replicas",
    ),
  );
}

function tile(name, value, text, level, place = null, picture = null) {
  return h(
    place ? "a" : "div",
    { class: "tile", "data-level": level, href: place ? `#view=${place}` : null, "data-go": place },
    h("span", { class: "label" }, name),
    h("strong", {}, value),
    h("span", { class: "soft" }, text),
    picture,
  );
}

const whenOf = (one, facts) => (facts.source.live ? ago(facts.at - one.noticed_at) : moment(one.noticed_at));

export function recentPanel(facts) {
  const shown = facts.recoveries.slice(-MOST_RECENT).reverse();
  const longest = Math.max(...shown.map((one) => one.total_ms), 1);
  return h(
    "section",
    { class: "panel recent", "aria-label": "Recoveries" },
    h(
      "header",
      {},
      h("h2", {}, "Recoveries"),
      h("span", { class: "grow" }),
      h("a", { href: "#view=timeline", "data-go": "timeline" }, "timeline"),
    ),
    shown.length + facts.under_way.length
      ? h(
          "ul",
          { class: "recoveries" },
          facts.under_way.map((one) =>
            h(
              "li",
              { class: "under-way", "data-key": `now ${one.peer}` },
              h(
                "span",
                { class: "name" },
                h("b", {}, title(one.peer, facts)),
                h(
                  "span",
                  { class: "soft" },
                  `${one.phase || "recovering"}, ${duration(1000 * (facts.at - one.since))} so far`,
                ),
              ),
              h("div", { class: "phases waiting" }),
            ),
          ),
          shown.map((one) =>
            h(
              "li",
              {
                "data-key": one.id,
                "data-recovery": one.id,
                "data-row": true,
                tabindex: "-1",
                "data-peer-of": one.peer,
              },
              h(
                "span",
                { class: "name" },
                h("b", {}, title(one.peer, facts)),
                h("span", { class: "soft" }, `life ${one.incarnation}, ${whenOf(one, facts)}`),
                h("span", { class: "grow" }),
                h("b", {}, duration(one.total_ms)),
              ),
              phaseBar(one, longest),
            ),
          ),
        )
      : h("p", { class: "empty" }, facts.no_recoveries),
  );
}

export const overview = {
  show(state) {
    const facts = indexed(state.facts);
    return [
      tiles(facts),
      h(
        "div",
        { class: "columns", "data-key": "columns" },
        peersPanel(state),
        h("div", { class: "column" }, graphPanel(state, { small: true }), recentPanel(facts)),
      ),
    ];
  },
  drawn: placeGraph,
};
