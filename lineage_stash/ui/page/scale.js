// From moments to places and back, and which moments deserve a mark. Pure. Times are in milliseconds.

const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3,
  7200e3, 10800e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3,
];
const APART_PX = 92;
export const SHORTEST_MS = 2;
export const LONGEST_MS = 90 * 86400e3;

export function scaleOf({ from, to }, left, width) {
  const perMs = width / (to - from);
  return { x: (ms) => left + (ms - from) * perMs, at: (x) => from + (x - left) / perMs, perMs };
}

/** Round moments, no closer together than their labels allow. */
export function ticks({ from, to }, width) {
  const wanted = ((to - from) * APART_PX) / width;
  const step = STEPS.find((one) => one >= wanted) ?? STEPS.at(-1);
  const zone = step >= 3600e3 ? new Date(from).getTimezoneOffset() * 60e3 : 0;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) found.push(at);
  return { step, at: found };
}

/** The window with so much more, or less, of time in it around a moment. */
export function zoomed({ from, to }, factor, around) {
  const span = Math.min(LONGEST_MS, Math.max(SHORTEST_MS, (to - from) * factor));
  const part = (around - from) / (to - from);
  return { from: around - span * part, to: around + span * (1 - part) };
}

export const moved = ({ from, to }, part) => ({ from: from + (to - from) * part, to: to + (to - from) * part });

/** All that there is, with a little room around it. */
export function extent(facts) {
  const moments = facts.recoveries.flatMap((one) => [one.noticed_at * 1000, one.noticed_at * 1000 + one.total_ms]);
  moments.push(
    ...facts.under_way.map((one) => one.since * 1000),
    ...facts.runs.map((run) => run.started_at * 1000).filter(Boolean),
  );
  if (facts.source.live) moments.push(facts.at * 1000);
  if (!moments.length) return { from: facts.at * 1000 - 60e3, to: facts.at * 1000 };
  const from = Math.min(...moments),
    to = Math.max(...moments),
    room = Math.max(20, (to - from) * 0.03);
  return { from: from - room, to: to + room };
}

export function around(recovery) {
  const from = recovery.noticed_at * 1000,
    room = Math.max(2, recovery.total_ms * 0.12);
  return { from: from - room, to: from + recovery.total_ms + room };
}
