"""Drawing the past of a call: as a picture (SVG), or as text for Graphviz. Needs nothing to be installed.

Every peer has a column, and time goes down: whatever caused something lies above it. The call that was asked about is
at the bottom, with a thick frame.
"""

from html import escape
from itertools import pairwise

from lineage_stash.cli.causes import CALLED, GIVEN, HEARD, ORDER, Node, Past

COLUMN, ROW, WIDTH, HEIGHT, MARGIN, HEAD = 250, 74, 220, 46, 20, 40
LONGEST = 32

COLOURS = {CALLED: "#2563eb", ORDER: "#9ca3af", HEARD: "#059669", GIVEN: "#d97706"}
WORDS = {CALLED: "called", ORDER: "ran after", HEARD: "heard", GIVEN: "was given"}
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #111827 } .peer { font-weight: bold } .small { font-size: 10px }
rect { fill: #f9fafb; stroke: #374151 } .root { stroke-width: 3 } .end { stroke-dasharray: 4 }
.page { fill: #fff; stroke: none }
path { fill: none; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } rect { fill: #1f2937; stroke: #9ca3af } .page { fill: #111827 } }
"""


def levels(past: Past) -> dict[str, int]:
    """How far down each node is: below all of its causes, but for those that it has itself caused while it went on."""
    causes: dict[str, list[str]] = {}
    for edge in past.edges:
        causes.setdefault(edge.effect, []).append(edge.cause)
    for column in _columns(past).values():
        for before, after in pairwise(column):
            causes.setdefault(after, []).append(before)
    found: dict[str, int] = {}

    def level_of(node: str, above: frozenset[str]) -> int:
        if node not in found:
            on_the_way = above | {node}
            lower = [level_of(cause, on_the_way) for cause in causes.get(node, ()) if cause not in on_the_way]
            found[node] = max(lower, default=-1) + 1
        return found[node]

    for node in past.nodes:
        level_of(node.id, frozenset())
    return found


def _columns(past: Past) -> dict[str, list[str]]:
    """The nodes of every peer, in the order of its log."""
    found: dict[str, list[str]] = {}
    for node in sorted(past.nodes, key=lambda node: -1 if node.at is None else node.at):
        found.setdefault(node.peer, []).append(node.id)
    return found


def as_svg(past: Past) -> str:
    """The past as a picture."""
    rows = levels(past)
    columns = {peer: number for number, peer in enumerate(dict.fromkeys(node.peer for node in reversed(past.nodes)))}
    spots = _spots(past, rows, columns)
    width = 2 * MARGIN + COLUMN * len(columns)
    height = 2 * MARGIN + HEAD + ROW * (max(y for _, y in spots.values()) + 1) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(f'Why {past.asked}')}</title><style>{STYLE}</style>",
        f'<rect class="page" x="0" y="0" width="{width}" height="{height}"/>',
        *(_text(MARGIN + COLUMN * column, MARGIN + 14, _shortened(peer.rpartition("/")[2] or peer), "peer")
          for peer, column in columns.items()),
        *(_edge(spots[edge.cause], spots[edge.effect], edge.kind, dashed=edge.probable) for edge in past.edges),
        *(_box(node, spots[node.id], is_root=node.id == past.root) for node in past.nodes),
        *(_text(MARGIN + 90 * number, height - 8, WORDS[kind], "small", COLOURS[kind])
          for number, kind in enumerate(COLOURS)),
        "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _spots(past: Past, rows: dict[str, int], columns: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Column and row of every node; two of one peer that nothing orders lie below each other."""
    taken: set[tuple[int, int]] = set()
    found: dict[str, tuple[int, int]] = {}
    for node in sorted(past.nodes, key=lambda node: (rows[node.id], node.id)):
        spot = columns[node.peer], rows[node.id]
        while spot in taken:
            spot = spot[0], spot[1] + 1
        taken.add(spot)
        found[node.id] = spot
    return found


def _box(node: Node, spot: tuple[int, int], *, is_root: bool) -> str:
    x, y = MARGIN + COLUMN * spot[0], MARGIN + HEAD + ROW * spot[1]
    kind = "root" if is_root else node.kind
    below = node.details[0] if node.details else node.call.partition("→")[0] and f"call of {_last(node.call)}"
    told = "\n".join((node.id, node.title, node.call, *node.details))
    at = "" if node.at is None else f"{node.at}: "
    return (
        f'<g><title>{escape(told)}</title><rect class="{kind}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" '
        f'rx="6"/>{_text(x + 8, y + 18, _shortened(at + node.title))}'
        f"{_text(x + 8, y + 36, _shortened(below), 'small')}</g>"
    )


def _last(call: str) -> str:
    caller, _, rest = call.partition("→")
    return f"{caller.rpartition('/')[2]} #{rest.rpartition('#')[2]}"


def _edge(cause: tuple[int, int], effect: tuple[int, int], kind: str, *, dashed: bool) -> str:
    x, y = MARGIN + COLUMN * cause[0] + WIDTH / 2, MARGIN + HEAD + ROW * cause[1] + HEIGHT
    to_x, to_y = MARGIN + COLUMN * effect[0] + WIDTH / 2, MARGIN + HEAD + ROW * effect[1]
    middle = (y + to_y) / 2
    colour = COLOURS[kind]
    dashes = ' stroke-dasharray="4"' if dashed else ""
    return (
        f'<path d="M {x:g} {y:g} C {x:g} {middle:g}, {to_x:g} {middle:g}, {to_x:g} {to_y:g}" stroke="{colour}"'
        f"{dashes}/>"
        f'<circle cx="{to_x:g}" cy="{to_y:g}" r="3" fill="{colour}"/>'
    )


def _text(x: float, y: float, words: str, kind: str = "", colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{style}>{escape(words)}</text>'


def _shortened(words: str) -> str:
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"


def as_dot(past: Past) -> str:
    """The past as text for Graphviz."""
    lines = [f"digraph {_quoted(past.asked)} {{", "  node [shape=box, style=rounded];"]
    for node in past.nodes:
        frame = ", penwidth=3" if node.id == past.root else ""
        label = _quoted("\n".join((node.id, node.title)) if node.at is not None else node.title)
        lines.append(f"  {_quoted(node.id)} [label={label}{frame}];")
    for edge in past.edges:
        look = f'label="{WORDS[edge.kind]}", color="{COLOURS[edge.kind]}"{", style=dashed" if edge.probable else ""}'
        lines.append(f"  {_quoted(edge.cause)} -> {_quoted(edge.effect)} [{look}];")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(words: str) -> str:
    escaped = words.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
