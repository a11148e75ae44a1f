"""Showing one recovery in full: a story with a line of time for people, a value for tools."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from lineage_stash.cli.recovery import Life, WholeRecovery
from lineage_stash.cli.show import NODE_DIGITS, in_units, table_of, when

BAR = 40
"""Columns of the line of time."""


def recovery_view(whole: WholeRecovery) -> RenderableType:
    """A recovery, for people."""
    one = whole.recovery
    ends = "" if whole.history_ends is None else f", whose history ended at index {whole.history_ends} of its log"
    took = f"{one.total_ms:.0f} ms"
    lines = [
        f"recovery {whole.id}, round {one.round}",
        f"died: {one.peer}, life {whole.former.incarnation}{_where(whole.former)}{ends}",
        f"noticed: {when(one.noticed_at)}, {one.reason}",
        f"back: life {one.incarnation} in {one.host or 'a process'}{_where(whole.present)}, after {took}",
        f"replayed: {one.replayed} entries, {one.replayed_calls} of them calls, {in_units(one.replayed_bytes)} of "
        f"payloads and readings; restored: {in_units(one.restored_bytes)} of state",
        f"down in the same round: {', '.join(whole.together) or 'nobody else'}",
        *([f"gone for good in it: {', '.join(whole.gone)}"] if whole.gone else []),
        f"affected, for up to {took}: {', '.join(whole.affected) or 'nobody is known to have called it'}",
    ]
    return Group(*map(Text, lines), _timeline(whole))


def _timeline(whole: WholeRecovery) -> RenderableType:
    table = table_of(("phase", "began", "took", ""), right=("began", "took"))
    total = max(whole.recovery.total_ms, 1e-9)
    for phase in whole.timeline:
        start, length = round(BAR * phase.began_ms / total), max(1, round(BAR * phase.took_ms / total))
        table.add_row(phase.name, f"{phase.began_ms:.1f}", f"{phase.took_ms:.1f}", " " * start + "█" * length)
    return Group(table, Text("times in milliseconds from the notice on"))


def _where(life: Life) -> str:
    parts = [f"pid {life.pid}"] if life.pid is not None else []
    parts += [f"node {life.node[:NODE_DIGITS]}"] if life.node else []
    return f" ({', '.join(parts)})" if parts else ""


def recovery_json(whole: WholeRecovery) -> dict[str, Any]:
    """A recovery, for tools."""
    return {
        "id": whole.id,
        **whole.recovery._asdict(),
        "former": whole.former._asdict(),
        "present": whole.present._asdict(),
        "history_ends": whole.history_ends,
        "timeline": [phase._asdict() for phase in whole.timeline],
        "together": list(whole.together),
        "gone": list(whole.gone),
        "affected": list(whole.affected),
    }
