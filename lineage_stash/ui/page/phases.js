// The phases of a recovery, from red to green: how nobody knew, until all was as before.

import { h } from "./dom.js";
import { duration } from "./format.js";

export const PHASES = ["detect", "gather", "settle", "start", "restore", "replay"];

export const MEANINGS = {
  detect: "from the notice of a death to the open round",
  gather: "every live peer promises to ignore the dead, and hands over its stash",
  settle: "replicas fence the dead; where their history ends is decided and published",
  start: "a process for the new life: a spare, or a new one",
  restore: "the last checkpoint and the log since then are loaded",
  replay: "logged calls run again, in the logged order with the logged reads",
};

/** The phases with the moments, in milliseconds since the notice, between which each lasts. */
export function spans(recovery) {
  let at = 0;
  return PHASES.map((phase) => {
    const from = at;
    at += recovery[`${phase}_ms`];
    return { phase, from, to: at, ms: at - from };
  });
}

/** A bar whose length is the recovery's, as a part of the longest one's. */
export function phaseBar(recovery, longest) {
  return h(
    "div",
    { class: "phases", "aria-hidden": "true" },
    spans(recovery).map(({ phase, ms }) =>
      h("i", {
        "data-phase": phase,
        "data-tip": `${phase} ${duration(ms)}`,
        style: { width: `${((100 * ms) / longest).toFixed(2)}%` },
      }),
    ),
  );
}

export function legend() {
  return h(
    "ul",
    { class: "legend" },
    PHASES.map((phase) => h("li", { "data-tip": MEANINGS[phase] }, h("i", { "data-phase": phase }), phase)),
  );
}
