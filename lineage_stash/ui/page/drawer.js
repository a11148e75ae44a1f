// One peer: all that is known of it, its recoveries, and its log.

import { show } from "./app.js";
import { h } from "./dom.js";
import { bytes, count, duration, moment, rate, shortName } from "./format.js";
import { dot, indexed, meter, title } from "./peers.js";
import { phaseBar } from "./phases.js";

const logs = { peer: null, pages: [], failure: "", asked: false, more: true };

async function askForLog(peer, before = null) {
  logs.asked = true;
  const query = new URLSearchParams({ peer, ...(before === null ? {} : { before }) });
  try {
    const answer = await fetch(`log?${query}`);
    const said = await answer.json();
    if (logs.peer !== peer) return;
    if (!answer.ok) throw new Error(said.error);
    logs.pages = before === null ? said.entries : [...said.entries, ...logs.pages];
    logs.more = said.more;
    logs.failure = "";
  } catch (error) {
    logs.failure = error.message;
  }
  show();
}

function begin(peer) {
  Object.assign(logs, { peer, pages: [], failure: "", asked: false, more: true });
}

export function drawer(state, id) {
  const facts = indexed(state.facts),
    peer = facts.byId.get(id);
  if (logs.peer !== id) begin(id);
  return [
    h(
      "header",
      { "data-key": `head ${id}` },
      peer ? dot(peer.state) : null,
      h("h2", {}, peer ? title(id, facts) : shortName(id)),
      h("span", { class: "grow" }),
      h("button", { type: "button", class: "plain", "data-close": true, "aria-label": "Close (Esc)" }, "×"),
    ),
    h("p", { class: "mono soft" }, id),
    peer ? figures(peer, facts) : h("p", { class: "empty" }, "Nobody of this name is on record."),
    callers(id, facts),
    ownRecoveries(id, facts),
    logOf(id, facts),
  ];
}

function figures(peer, facts) {
  const live = facts.source.live;
  const rows = [
    ["state", h("span", { class: `state ${peer.state}` }, peer.state)],
    ["class", peer.class_name],
    ["life", `${peer.incarnation}${peer.recovered ? `, recovered ${peer.recovered} ×` : ""}`],
    ["node", [peer.node.slice(0, 8), peer.host].filter(Boolean).join(" ")],
    ["process", peer.pid],
    ["log", peer.upper === null ? null : `${count(peer.upper)} entries`],
    ["not committed", live && peer.lag !== null ? `${count(peer.lag)} of its own` : null],
    ["depends on", peer.entries_needed ? `${count(peer.entries_needed)} entries that are not committed` : null],
    ["checkpoint", peer.checkpointed ? `up to ${count(peer.checkpointed)}` : null],
    [
      "stash",
      live && peer.stash_bytes !== null
        ? [meter(peer.stash_bytes, peer.stash_cap_bytes), bytes(peer.stash_bytes)]
        : null,
    ],
    [
      "buffers",
      live && peer.buffer_bytes !== null
        ? [meter(peer.buffer_bytes, peer.buffer_cap_bytes), bytes(peer.buffer_bytes)]
        : null,
    ],
    ["in the store", peer.held_bytes ? bytes(peer.held_bytes) : null],
    ["calls", live && peer.calls !== null ? `${count(peer.calls)}, ${rate(peer.calls_per_s)}` : null],
    ["durability", peer.level],
  ];
  return h(
    "dl",
    { class: "figures" },
    rows
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

function callers(id, facts) {
  const into = facts.flows.filter((flow) => flow.callee === id),
    out = facts.flows.filter((flow) => flow.caller === id);
  const list = (name, flows, end) =>
    flows.length
      ? [
          h("h3", {}, name),
          h(
            "ul",
            { class: "flows" },
            flows
              .slice(0, 12)
              .map((flow) =>
                h(
                  "li",
                  { "data-key": flow[end] },
                  h("button", { class: "link", "data-peer": flow[end] }, title(flow[end], facts)),
                  h("span", { class: "grow" }),
                  h("span", { class: "soft" }, `${count(flow.calls)} calls`),
                  flow.per_s ? h("b", {}, rate(flow.per_s)) : null,
                ),
              ),
            flows.length > 12 ? h("li", { class: "soft" }, `and ${flows.length - 12} more`) : null,
          ),
        ]
      : null;
  return h("section", { "data-key": "flows" }, list("called by", into, "caller"), list("calls", out, "callee"));
}

function ownRecoveries(id, facts) {
  const own = facts.recoveries
    .filter((one) => one.peer === id)
    .slice(-6)
    .reverse();
  if (!own.length) return null;
  const longest = Math.max(...own.map((one) => one.total_ms));
  return h(
    "section",
    { "data-key": "recoveries" },
    h("h3", {}, "recoveries"),
    h(
      "ul",
      { class: "recoveries" },
      own.map((one) =>
        h(
          "li",
          { "data-key": one.id, "data-recovery": one.id, "data-row": true, tabindex: "0" },
          h(
            "span",
            { class: "name" },
            h("b", {}, `life ${one.incarnation}`),
            h("span", { class: "soft" }, moment(one.noticed_at)),
            h("span", { class: "grow" }),
            h("b", {}, duration(one.total_ms)),
          ),
          phaseBar(one, longest),
        ),
      ),
    ),
  );
}

function logOf(id, facts) {
  if (!facts.reads_logs) return null;
  if (!logs.asked) askForLog(id);
  const [first] = logs.pages;
  return h(
    "section",
    { "data-key": "log", class: "log" },
    h(
      "h3",
      {},
      "log, newest first",
      h("span", { class: "grow" }),
      h("button", { class: "link", "data-newest": id }, "newest"),
    ),
    logs.failure ? h("p", { class: "empty" }, logs.failure) : null,
    h(
      "ol",
      {},
      [...logs.pages]
        .reverse()
        .map((entry) =>
          h(
            "li",
            { "data-key": String(entry.index) },
            h("span", { class: "index" }, entry.index),
            h("span", { class: "words", title: entry.text }, entry.text),
            entry.call
              ? h("button", { class: "link", "data-call": entry.call, "aria-label": `why ${entry.text}` }, "why")
              : null,
          ),
        ),
    ),
    first && logs.more
      ? h("button", { class: "link", "data-before": first.index, "data-of": id }, "earlier ones")
      : null,
  );
}

document.addEventListener("click", (event) => {
  const earlier = event.target.closest("[data-before]"),
    newest = event.target.closest("[data-newest]");
  if (earlier) askForLog(earlier.dataset.of, earlier.dataset.before);
  if (newest) askForLog(newest.dataset.newest);
});
