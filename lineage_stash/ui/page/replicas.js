// The store and the nodes: what is up, what it holds, and who would be lost together.

import { h } from "./dom.js";
import { bytes, natural, plural } from "./format.js";
import { LEFT, dot, indexed, title } from "./peers.js";

function serviceCard(service, facts) {
  const archive = service.name === facts.archive;
  return h(
    "li",
    { class: "service", "data-key": service.name, "data-up": String(service.up) },
    h(
      "header",
      {},
      dot(service.up ? "alive" : "down"),
      h("b", {}, service.name),
      archive ? h("span", { class: "soft" }, "archive") : null,
      h("span", { class: "grow" }),
      h(
        "span",
        { class: `state ${service.up ? "alive" : "down"}` },
        service.up ? "up" : facts.source.live ? "down" : "file",
      ),
    ),
    h("p", {}, service.found || "–"),
    h(
      "dl",
      {},
      service.held_bytes === null ? null : [h("dt", {}, "holds"), h("dd", {}, bytes(service.held_bytes))],
      service.node
        ? [h("dt", {}, "node"), h("dd", { class: "mono" }, service.node.slice(0, 8), " ", service.host)]
        : null,
      service.pid === null ? null : [h("dt", {}, "pid"), h("dd", {}, service.pid)],
    ),
  );
}

function nodesPanel(facts) {
  const nodes = new Map();
  const at = (node) => nodes.get(node) ?? nodes.set(node, { services: [], peers: [] }).get(node);
  for (const service of facts.services) if (service.node) at(service.node).services.push(service);
  for (const peer of facts.peers) if (peer.node && !LEFT.has(peer.state)) at(peer.node).peers.push(peer);
  if (!nodes.size) return null;
  return h(
    "section",
    { class: "panel", "aria-label": "Nodes" },
    h("header", {}, h("h2", {}, "Nodes"), h("span", { class: "soft" }, "what is in one box is lost together")),
    h(
      "ul",
      { class: "nodes" },
      [...nodes]
        .sort(([one], [other]) => natural(one, other))
        .map(([node, { services, peers }]) =>
          h(
            "li",
            { class: "node", "data-key": node, "data-alive": String(facts.alive_nodes.includes(node)) },
            h(
              "header",
              {},
              h("b", { class: "mono" }, node.slice(0, 8)),
              h("span", { class: "soft" }, facts.alive_nodes.includes(node) ? "" : "dead"),
              h("span", { class: "grow" }),
              h("span", { class: "soft" }, plural(peers.length, "peer")),
            ),
            h(
              "p",
              { class: "chips" },
              services.map((service) => h("span", { class: "chip", "data-up": String(service.up) }, service.name)),
            ),
            h(
              "p",
              { class: "dots" },
              [...peers]
                .sort((one, other) => natural(one.peer, other.peer))
                .map((peer) =>
                  h(
                    "button",
                    {
                      class: "member",
                      "data-key": peer.peer,
                      "data-peer": peer.peer,
                      "data-tip": `${title(peer.peer, facts)}, ${peer.state}`,
                      "aria-label": `${title(peer.peer, facts)}, ${peer.state}`,
                    },
                    dot(peer.state),
                  ),
                ),
            ),
          ),
        ),
    ),
  );
}

export const replicas = {
  show(state) {
    const facts = indexed(state.facts);
    const lost = Object.entries(facts.lost);
    return [
      h(
        "section",
        { class: "panel", "aria-label": "Store", "data-key": "store" },
        h(
          "header",
          {},
          h("h2", {}, "Store"),
          h(
            "span",
            { class: "soft" },
            [
              facts.epoch === null ? null : `epoch ${facts.epoch}`,
              facts.durability && `durability ${facts.durability}`,
              facts.spares === null ? null : plural(facts.spares, "spare"),
              facts.source.live ? `round ${facts.round}${facts.phase ? `, ${facts.phase}` : ""}` : null,
            ]
              .filter(Boolean)
              .join(" · "),
          ),
        ),
        facts.services.length
          ? h(
              "ul",
              { class: "services" },
              facts.services.map((service) => serviceCard(service, facts)),
            )
          : h("p", { class: "empty" }, "No service is registered."),
        lost.length
          ? h(
              "ul",
              { class: "lost" },
              lost.map(([name, why]) => h("li", {}, h("b", {}, name), " was lost, and is replaced: ", why)),
            )
          : null,
      ),
      nodesPanel(facts),
    ];
  },
};
