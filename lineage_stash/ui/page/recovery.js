// One recovery in full: phase by phase, and who had to wait for it.

import { show } from "./app.js";
import { h } from "./dom.js";
import { bytes, duration, many, moment } from "./format.js";
import { title } from "./peers.js";
import { MEANINGS, spans } from "./phases.js";

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
  return [
    said.history_ends === null
      ? null
      : [h("dt", {}, "history ends"), h("dd", {}, `at index ${said.history_ends.toLocaleString("en")} of its log`)],
    said.affected.length
      ? [
          h("dt", {}, "had to wait"),
          h(
            "dd",
            {},
            said.affected
              .slice(0, 8)
              .map((peer) => h("button", { class: "link", "data-peer": peer }, title(peer, facts))),
            said.affected.length > 8 ? `and ${said.affected.length - 8} more` : null,
          ),
        ]
      : null,
  ];
}

export function details(one, facts) {
  const together = facts.recoveries.filter((other) => other.round === one.round && other !== one);
  return h(
    "section",
    { class: "panel details", "aria-label": "One recovery", "data-key": "details" },
    h(
      "header",
      {},
      h("h2", {}, `${title(one.peer, facts)}: life ${one.incarnation - 1} died, life ${one.incarnation} took over`),
      h("span", { class: "grow" }),
      h("button", { class: "plain", "data-step": "-1" }, "previous (p)"),
      h("button", { class: "plain", "data-step": "1" }, "next (n)"),
    ),
    h(
      "div",
      { class: "facts" },
      h(
        "dl",
        { class: "figures" },
        [
          ["noticed", `${moment(one.noticed_at)}: ${one.reason}`],
          ["back after", h("b", {}, duration(one.total_ms))],
          ["round", one.round],
          [
            "replayed",
            [
              many(one.replayed, "entry", "entries"),
              one.replayed_calls ? many(one.replayed_calls, "call", "calls") : "",
              one.restored_bytes ? `after a checkpoint of ${bytes(one.restored_bytes)}` : "",
            ]
              .filter(Boolean)
              .join(", "),
          ],
          ["in", [one.host, one.pid ? `process ${one.pid}` : ""].filter(Boolean).join(", ")],
          ["peer", h("button", { class: "link mono", "data-peer": one.peer }, one.peer)],
        ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
        affected(one, facts),
        together.length
          ? [
              h("dt", {}, "together with"),
              h(
                "dd",
                {},
                together.map((other) =>
                  h(
                    "button",
                    { class: "link", "data-recovery": other.id },
                    `${title(other.peer, facts)} (${duration(other.total_ms)})`,
                  ),
                ),
              ),
            ]
          : null,
      ),
      h(
        "ol",
        { class: "waterfall" },
        spans(one).map(({ phase, from, ms }) =>
          h(
            "li",
            {},
            h("span", {}, h("i", { "data-phase": phase }), phase),
            h(
              "span",
              { class: "track" },
              h("i", {
                "data-phase": phase,
                style: {
                  "margin-left": `${(100 * from) / one.total_ms}%`,
                  width: `${Math.max(0.4, (100 * ms) / one.total_ms)}%`,
                },
              }),
            ),
            h("b", {}, duration(ms)),
            h("span", { class: "soft" }, MEANINGS[phase]),
          ),
        ),
      ),
    ),
  );
}
