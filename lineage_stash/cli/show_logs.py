"""Showing logs and causes: tables and trees for people, values for tools."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from lineage_stash.cli.causes import CALLED, GIVEN, HEARD, ORDER, Edge, Node, Past
from lineage_stash.cli.logs import LogEntry, LogPart, as_dict
from lineage_stash.cli.replaying import Replayed, Report
from lineage_stash.cli.show import in_units, table_of

RELATIONS = {
    CALLED: "called by", ORDER: "ran after", HEARD: "had heard from", GIVEN: "was given",
}  # fmt: skip

KIND_STYLES = {"ran": "bold", "read": "cyan", "waited": "yellow", "got": "green"}


def log_view(part: LogPart, shown: tuple[LogEntry, ...]) -> RenderableType:
    """A part of a log, for people."""
    lives = ", ".join(f"life {life} from {began}" for life, began in part.incarnations)
    lines = [f"{part.peer}: entries {part.base} to {part.upper} in {part.where}; {lives}"]
    if part.base:
        lines.append(f"below {part.base} it is truncated: the checkpoint at {max(part.checkpoints, default=part.base)} "
                     "covers that")  # fmt: skip
    if part.retired:
        lines.append("it has left for good, and its record is there")
    if not shown:
        return Group(*map(Text, lines), Text("no entries here"))
    table = table_of(("index", "life", "kind", "what", "holds", "came to depend on"), right=("index", "life", "holds"))
    for entry in shown:
        held = in_units(entry.payload_bytes) if entry.payload_bytes else ""
        table.add_row(str(entry.at), str(entry.incarnation), Text(entry.kind, KIND_STYLES.get(entry.kind, "")),
                      Text(entry.words.removeprefix("ran ")), held, Text(_needs(entry)))  # fmt: skip
    return Group(*map(Text, lines), table)


def _needs(entry: LogEntry) -> str:
    return ", ".join(f"{peer} < {upper}" for peer, upper in entry.needs)


def log_json(part: LogPart, shown: tuple[LogEntry, ...]) -> dict[str, Any]:
    """A part of a log, for tools."""
    return {
        **part._asdict(),
        "incarnations": [{"incarnation": life, "began": began} for life, began in part.incarnations],
        "checkpoints": list(part.checkpoints),
        "entries": [as_dict(entry) for entry in shown],
    }


# causes


def past_view(past: Past) -> RenderableType:
    """The past of a call as a tree, its causes below it; what was told above is not told again."""
    by_id = {node.id: node for node in past.nodes}
    causes: dict[str, list[Edge]] = {}
    for edge in past.edges:
        causes.setdefault(edge.effect, []).append(edge)
    root = by_id[past.root]
    tree = Tree(_label(root, ""))
    told = {root.id}
    # What is nearest to the root is told there, so that the tree is as flat as the past is.
    waiting = [(tree, root)]
    while waiting:
        branch, effect = waiting.pop(0)
        for edge in causes.get(effect.id, ()):
            cause = by_id[edge.cause]
            if cause.id in told and cause.kind != "end":
                branch.add(Text(f"{_relation(edge)} {cause.id}: {cause.title} (told above)", "dim"))
                continue
            told.add(cause.id)
            waiting.append((branch.add(_label(cause, _relation(edge))), cause))
    cut = [Text(f"{past.cut} causes were not followed: see --depth and --most", "dim")] if past.cut else []
    return Group(tree, *cut)


def _relation(edge: Edge) -> str:
    return f"{'probably ' if edge.probable else ''}{RELATIONS[edge.kind]}"


def _label(node: Node, relation: str) -> Text:
    text = Text(f"{relation} " if relation else "", "dim")
    if node.kind == "end":
        text.append(node.title, "dim")
        return text
    text.append(f"{node.id} " if node.at is not None else "", "cyan")
    text.append(node.title, "bold")
    if node.call:
        text.append(f"  {node.call}", "dim")
    for detail in node.details:
        text.append(f"\n{detail}")
    return text


def past_json(past: Past) -> dict[str, Any]:
    """The past of a call, for tools."""
    return {
        "asked": past.asked,
        "root": past.root,
        "cut": past.cut,
        "nodes": [{**node._asdict(), "details": list(node.details)} for node in past.nodes],
        "edges": [edge._asdict() for edge in past.edges],
    }


# replays


def replay_view(report: Report) -> RenderableType:
    """What a replay came to, for people."""
    parts: list[RenderableType] = [Text(f"{report.peer} at index {report.to}, from {report.where}")]
    for replayed in (report.own, report.other):
        if replayed is not None:
            parts += _replayed(replayed)
    found = report.difference
    if found is not None:
        where = f"{report.peer}:{found.at} {found.words}".rstrip()
        parts.append(Text(f"first difference, at {where}: {found.what}", "bold red"))
        parts += [Text(f"  own code: {found.first}"), Text(f"  other code: {found.other}")]
    elif report.other is not None and report.other.ended is None:
        judge = "the log has nothing against it" if report.own is None else "no difference"
        parts.append(Text(f"{judge}, to the end", "green"))
    return Group(*parts)


def _replayed(replayed: Replayed) -> list[RenderableType]:
    began = f"from the checkpoint at {replayed.lower}" if replayed.lower else "from the beginning"
    lines: list[RenderableType] = [Text(f"{replayed.code}: {began} to index {replayed.reached}")]
    if replayed.last:
        lines.append(Text(f"  last call: {replayed.last}"))
    if replayed.ended is not None and replayed.ended.kind != "differs":
        lines.append(Text(f"  ended at index {replayed.ended.at}: {replayed.ended.text}", "yellow"))
    table = table_of(("state", "value"))
    for name, value in replayed.state.items():
        table.add_row(Text(name), Text(value))
    return [*lines, table] if replayed.state else lines


def replay_json(report: Report) -> dict[str, Any]:
    """What a replay came to, for tools."""

    def plain(replayed: Replayed | None) -> dict[str, Any] | None:
        if replayed is None:
            return None
        return {**replayed._asdict(), "ended": None if replayed.ended is None else replayed.ended._asdict()}

    difference = None if report.difference is None else report.difference._asdict()
    return {**report._asdict(), "own": plain(report.own), "other": plain(report.other), "difference": difference}
