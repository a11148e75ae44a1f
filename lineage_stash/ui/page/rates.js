// What was a moment ago, for the little curves; the rates themselves come with the facts.

const KEPT = 60;

class History {
  constructor() {
    this.lines = new Map();
  }

  add(facts) {
    this._put("total", facts.totals.calls_per_s ?? 0);
    for (const peer of facts.peers) this._put(peer.peer, peer.calls_per_s ?? 0);
  }

  of(name) {
    return this.lines.get(name) ?? [];
  }

  _put(name, value) {
    const line = this.lines.get(name) ?? [];
    line.push(value);
    if (line.length > KEPT) line.shift();
    this.lines.set(name, line);
  }
}

export const history = new History();

/** A curve as the `d` of a path in a box of this size. */
export function curve(values, width, height) {
  if (values.length < 4) return "";
  const top = Math.max(...values, 1e-9),
    step = width / (KEPT - 1),
    from = width - step * (values.length - 1);
  const place = (value, position) => [from + position * step, height - 1 - ((height - 2) * value) / top];
  return values
    .map(place)
    .map(([x, y], position) => `${position ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`)
    .join("");
}
