// The timeline: what died when, and what happened until it was back. From days to milliseconds. This is what is looked
// at, and moving through it; drawing is in chart.js.

import { go, show } from "./app.js";
import { LABELS, RIGHT, chart, strip } from "./chart.js";
import { h } from "./dom.js";
import { indexed } from "./peers.js";
import { legend } from "./phases.js";
import { details } from "./recovery.js";
import { around, extent, moved, scaleOf, zoomed } from "./scale.js";

const MOVE_MS = 220;

// What is looked at: everything while `window` is null.
const seen = { window: null, focused: null, width: 0, moving: 0 };

// The newest facts, for what comes between two drawings: keys, the wheel, and moving smoothly.
let latest = null;

const windowOf = (facts) => seen.window ?? extent(facts);
const widthOf = () => Math.max(seen.width || 900, 480);

function lookAt(wanted, { smooth = true } = {}) {
  const from = windowOf(latest),
    target = wanted ?? extent(latest);
  cancelAnimationFrame(seen.moving);
  if (!smooth || matchMedia("(prefers-reduced-motion: reduce)").matches) {
    seen.window = wanted;
    show();
    return;
  }
  const began = performance.now();
  const step = (now) => {
    const part = Math.min(1, (now - began) / MOVE_MS),
      eased = 1 - (1 - part) ** 3;
    // Lengths change by factors, so that every moment of the way looks alike.
    const span = (from.to - from.from) ** (1 - eased) * (target.to - target.from) ** eased;
    const done =
      from.to - from.from === target.to - target.from
        ? eased
        : (span - (from.to - from.from)) / (target.to - target.from - (from.to - from.from));
    const left = from.from + (target.from - from.from) * done;
    seen.window = part < 1 ? { from: left, to: left + span } : wanted;
    show();
    if (part < 1) seen.moving = requestAnimationFrame(step);
  };
  seen.moving = requestAnimationFrame(step);
}

function step(direction, state) {
  const all = latest.recoveries;
  if (!all.length) return;
  const at = all.findIndex((one) => one.id === state.where.get("recovery"));
  const next = at < 0 ? (direction > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + direction));
  if (next === at) lookAt(around(all[at]));
  else go({ recovery: all[next].id });
}

const attached = new WeakSet();

function attach(element) {
  if (attached.has(element)) return;
  attached.add(element);
  element.addEventListener(
    "wheel",
    (event) => {
      if (event.shiftKey) return;
      event.preventDefault();
      const scale = scaleOf(windowOf(latest), LABELS, seen.width - LABELS - RIGHT);
      const x = event.clientX - element.getBoundingClientRect().left;
      const looked = windowOf(latest);
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      lookAt(
        sideways
          ? moved(looked, event.deltaX / seen.width)
          : zoomed(looked, Math.exp(event.deltaY * 0.0022), scale.at(Math.max(LABELS, x))),
        { smooth: false },
      );
    },
    { passive: false },
  );
  let held = null;
  element.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, window: windowOf(latest), strip: event.target.closest("[data-strip]"), moved: false };
  });
  element.addEventListener("pointermove", (event) => {
    if (!held || !event.buttons) {
      held = null;
      return;
    }
    const by = event.clientX - held.x;
    if (Math.abs(by) < 4 && !held.moved) return;
    held.moved = true;
    element.setPointerCapture(event.pointerId);
    const width = seen.width - LABELS - RIGHT,
      all = extent(latest);
    const ms = held.strip ? (by * (all.to - all.from)) / width : (-by * (held.window.to - held.window.from)) / width;
    lookAt({ from: held.window.from + ms, to: held.window.to + ms }, { smooth: false });
  });
  element.addEventListener("pointerup", () => {
    held = null;
  });
  element.addEventListener("click", (event) => {
    const wanted = event.target.closest("[data-zoom]")?.dataset.zoom;
    if (wanted === "all") lookAt(null);
    else if (wanted) lookAt(zoomed(windowOf(latest), Number(wanted), middle()));
  });
  new ResizeObserver(() => {
    if (seen.width !== element.clientWidth) {
      seen.width = element.clientWidth;
      show();
    }
  }).observe(element);
}

const middle = () => {
  const { from, to } = windowOf(latest);
  return (from + to) / 2;
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-step]");
  if (button) step(Number(button.dataset.step), { where: new URLSearchParams(location.hash.slice(1)) });
});

export const timeline = {
  show(state) {
    const facts = (latest = indexed(state.facts));
    const chosen = facts.recoveries.find((one) => one.id === state.where.get("recovery"));
    const any = facts.recoveries.length + facts.under_way.length;
    return [
      h(
        "section",
        { class: "panel timeline", "aria-label": "Timeline", "data-key": "timeline" },
        h(
          "header",
          {},
          h("h2", {}, "Failures and recoveries"),
          legend(),
          h("span", { class: "grow" }),
          any
            ? h(
                "div",
                { class: "zoom" },
                h(
                  "button",
                  { class: "plain", "data-zoom": "2", "aria-label": "Zoom out (−)", title: "Zoom out (−)" },
                  "−",
                ),
                h(
                  "button",
                  { class: "plain", "data-zoom": "0.5", "aria-label": "Zoom in (+)", title: "Zoom in (+)" },
                  "+",
                ),
                h("button", { class: "plain", "data-zoom": "all", title: "Everything (0)" }, "all"),
              )
            : null,
        ),
        any
          ? h(
              "div",
              { class: "plot" },
              h("div", { class: "scroll" }, chart(facts, chosen?.id, windowOf(facts), widthOf())),
              strip(facts, windowOf(facts), widthOf()),
            )
          : h("p", { class: "empty" }, facts.no_recoveries),
      ),
      chosen
        ? details(chosen, facts)
        : any
          ? h(
              "p",
              { class: "hint", "data-key": "hint" },
              "Choose a recovery, or press ",
              h("kbd", {}, "n"),
              ". Wheel, ",
              h("kbd", {}, "+"),
              " and ",
              h("kbd", {}, "−"),
              " zoom; ",
              h("kbd", {}, "←"),
              " and ",
              h("kbd", {}, "→"),
              " go through time; ",
              h("kbd", {}, "0"),
              " is everything.",
            )
          : null,
    ];
  },

  drawn(main, state) {
    const panel = main.querySelector(".timeline");
    if (!panel) return;
    attach(panel);
    const chosen = state.where.get("recovery");
    if (chosen === seen.focused) return;
    seen.focused = chosen;
    const one = latest.recoveries.find((other) => other.id === chosen);
    if (!one) return;
    main.querySelector(".chart .recovery.chosen")?.scrollIntoView({ block: "nearest" });
    lookAt(around(one));
  },

  key(event, state) {
    const looked = latest && windowOf(latest);
    const act = {
      "+": () => lookAt(zoomed(looked, 0.5, middle())),
      "=": () => lookAt(zoomed(looked, 0.5, middle())),
      "-": () => lookAt(zoomed(looked, 2, middle())),
      0: () => lookAt(null),
      ArrowLeft: () => lookAt(moved(looked, -0.2)),
      ArrowRight: () => lookAt(moved(looked, 0.2)),
      n: () => step(1, state),
      p: () => step(-1, state),
    }[event.key];
    if (!looked || !act) return false;
    act();
    return true;
  },
};
