// A graph in layers, from left to right: whoever is called is to the right of whoever calls, as far as possible.
// Pure: nodes with sizes and edges in, places out.

const SWEEPS = 6;

/** `nodes`: [{id, width, height, first}]; `edges`: [{from, to}]; places by id, and the size of it all. */
export function inLayers(nodes, edges, { gapX = 96, gapY = 18, most = 12, tallest = Infinity } = {}) {
  const links = edges.filter((edge) => edge.from !== edge.to);
  const forward = withoutCycles(nodes, links);
  const layers = wrapped(ordered(byDepth(nodes, forward), forward), most, tallest, gapY);
  return placed(layers, gapX, gapY);
}

/** The edges without those that lead back to where a walk from the first nodes came from. */
function withoutCycles(nodes, links) {
  const next = grouped(links, "from"),
    kept = [],
    seen = new Map();
  const walk = (id) => {
    seen.set(id, "open");
    for (const edge of next.get(id) ?? []) {
      if (seen.get(edge.to) === "open") continue;
      kept.push(edge);
      if (!seen.has(edge.to)) walk(edge.to);
    }
    seen.set(id, "done");
  };
  for (const node of [...nodes].sort((one, other) => Number(other.first) - Number(one.first)))
    if (!seen.has(node.id)) walk(node.id);
  return kept;
}

/** Longest ways from the left; a node that nobody calls and that calls nobody is in the first layer. */
function byDepth(nodes, links) {
  const depth = new Map(nodes.map((node) => [node.id, 0]));
  for (let round = 0; round < nodes.length; round += 1) {
    let moved = false;
    for (const { from, to } of links) {
      if (depth.get(to) <= depth.get(from)) {
        depth.set(to, depth.get(from) + 1);
        moved = true;
      }
    }
    if (!moved) break;
  }
  const layers = [];
  for (const node of nodes) (layers[depth.get(node.id)] ??= []).push(node);
  return layers.filter(Boolean);
}

/** Within a layer, nodes are near those that they are linked with, so that few edges cross. */
function ordered(layers, links) {
  const incoming = grouped(links, "to"),
    outgoing = grouped(links, "from");
  const place = new Map();
  const note = () =>
    layers.forEach((layer) => layer.forEach((node, position) => place.set(node.id, position / layer.length)));
  note();
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const [neighbours, end] = sweep % 2 ? [outgoing, "to"] : [incoming, "from"];
    for (const layer of layers) {
      const middle = new Map(
        layer.map((node) => {
          const around = (neighbours.get(node.id) ?? []).map((edge) => place.get(edge[end]));
          return [
            node.id,
            around.length ? around.reduce((sum, one) => sum + one, 0) / around.length : place.get(node.id),
          ];
        }),
      );
      layer.sort((one, other) => middle.get(one.id) - middle.get(other.id));
    }
    note();
  }
  return layers;
}

/** A layer that is too tall becomes several columns, close together. */
function wrapped(layers, most, tallest, gapY) {
  return layers.flatMap((layer) => {
    const height = layer.reduce((sum, node) => sum + node.height + gapY, 0);
    const parts = Math.max(Math.ceil(layer.length / most), Math.ceil(height / tallest));
    const size = Math.ceil(layer.length / parts);
    return Array.from({ length: Math.ceil(layer.length / size) }, (_, part) => ({
      nodes: layer.slice(part * size, (part + 1) * size),
      close: part > 0,
    }));
  });
}

function placed(layers, gapX, gapY) {
  const heights = layers.map(({ nodes }) => nodes.reduce((sum, node) => sum + node.height, gapY * (nodes.length - 1)));
  const height = Math.max(...heights, 0);
  const places = new Map();
  let x = 0;
  layers.forEach(({ nodes, close }, position) => {
    if (position) x += close ? gapY : gapX;
    let y = (height - heights[position]) / 2;
    for (const node of nodes) {
      places.set(node.id, { x, y, width: node.width, height: node.height });
      y += node.height + gapY;
    }
    x += Math.max(...nodes.map((node) => node.width));
  });
  return { places, width: x, height };
}

function grouped(links, end) {
  const groups = new Map();
  for (const edge of links) groups.set(edge[end], [...(groups.get(edge[end]) ?? []), edge]);
  return groups;
}
