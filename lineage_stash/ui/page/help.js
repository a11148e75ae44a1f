// Which keys do what.

import { h } from "./dom.js";

const KEYS = [
  [
    "everywhere",
    [
      ["1 … 5", "overview, dataflow, timeline, causes, replicas"],
      ["/", "look for a peer"],
      ["j k ↑ ↓", "from row to row"],
      ["Enter", "open"],
      ["Esc", "close, or leave a field"],
      ["t", "light, dark, or as the system"],
      ["?", "this"],
    ],
  ],
  [
    "timeline",
    [
      ["+ −, wheel", "zoom in and out"],
      ["← →, drag", "earlier, later"],
      ["Shift and wheel", "up and down through the lanes"],
      ["n p", "the next recovery, the previous one"],
      ["0", "everything"],
    ],
  ],
  [
    "dataflow and causes",
    [
      ["Tab", "from peer to peer"],
      ["g", "classes as one, or every peer (dataflow)"],
    ],
  ],
];

export function helpPage() {
  return h(
    "div",
    { class: "keys" },
    h("h2", {}, "Keys"),
    KEYS.map(([title, keys]) =>
      h(
        "section",
        {},
        h("h3", {}, title),
        h(
          "dl",
          {},
          keys.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]),
        ),
      ),
    ),
    h("form", { method: "dialog" }, h("button", { class: "plain" }, "Close")),
  );
}
