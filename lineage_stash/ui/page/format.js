// Numbers, times and names for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let amount = count,
    unit = 0;
  while (amount >= 1024 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return unit ? `${amount.toFixed(amount < 10 ? 1 : 0)} ${UNITS[unit]}` : `${count} B`;
}

export function count(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10_000) return Math.round(number).toLocaleString("en");
  const [size, letter] = number < 1e6 ? [1e3, "k"] : number < 1e9 ? [1e6, "M"] : [1e9, "G"];
  const amount = number / size;
  return `${amount.toFixed(amount < 100 ? 1 : 0)}${letter}`;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond > 0 && perSecond < 9.95) return `${perSecond.toFixed(1)}/s`;
  return `${count(perSecond)}/s`;
}

export function duration(ms) {
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
}

export function ago(seconds) {
  if (seconds < 1) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} days ago`;
}

const two = (number) => String(number).padStart(2, "0");

/** The time of day, with as many places as a step of so many milliseconds needs. */
export function clock(ms, step = 1000) {
  const at = new Date(ms);
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (step >= 86_400_000) return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  if (step >= 60_000) return minutes;
  const places = step >= 1000 ? 0 : step >= 100 ? 1 : step >= 10 ? 2 : 3;
  const fraction = places
    ? `.${String(Math.floor(ms) % 1000)
        .padStart(3, "0")
        .slice(0, places)}`
    : "";
  return `${minutes}:${two(at.getSeconds())}${fraction}`;
}

export function moment(seconds) {
  return seconds ? `${clock(seconds * 1000, 86_400_000)} ${clock(seconds * 1000)}` : "–";
}

/** The last part of an id, which tells it from its siblings. */
export const shortName = (peer) => peer.slice(peer.lastIndexOf("/") + 1);

export const runOf = (peer) => peer.split("/", 1)[0];

export const natural = new Intl.Collator("en", { numeric: true }).compare;

export const many = (number, one, several) => `${count(number)} ${number === 1 ? one : several}`;

export const plural = (number, word) => many(number, word, `${word}s`);

export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
