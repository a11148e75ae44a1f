"""Status, live: what every peer that is alive does in a second, by two looks and the time between them.

Peers are asked for their figures; nothing is counted for it, and nobody waits for an answer that does not come.
"""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from lineage_stash.cli import show
from lineage_stash.cli.cluster import Cluster
from lineage_stash.cli.figures import ask_figures
from lineage_stash.cli.options import Format, as_text, chosen
from lineage_stash.cli.records import Records, Recovery, read
from lineage_stash.cli.status import PeerStatus, State, peer_status

QUIT = ("q", "Q", "\x03", "\x04")


class Look(NamedTuple):
    """What was seen at one moment."""

    at_s: float
    peers: dict[str, PeerStatus]
    round: int
    recoveries: int
    last: Recovery | None


class Row(NamedTuple):
    """What one peer does."""

    peer: str
    class_name: str
    kind: str
    run: str
    state: State
    incarnation: int
    recovered: int
    calls_per_s: float
    entries_per_s: float
    committed_per_s: float
    calls: int
    lag: int
    stash_bytes: int
    stash_cap_bytes: int
    buffer_bytes: int
    level: str
    is_held_back: bool


def look(cluster: Cluster) -> Look:
    """See how far everybody is."""
    records: Records = read(cluster.plane)
    figures = ask_figures(records, cluster.node)
    at_s = time.monotonic()
    found = {peer: peer_status(peer, records, None, figures.get(peer)) for peer in records.peers}
    alive: dict[str, PeerStatus] = {peer: status for peer, status in found.items() if not status.state.has_left}
    last = records.recoveries[-1] if records.recoveries else None
    return Look(at_s, alive, records.history.round, len(records.recoveries), last)


def rates(before: Look, now: Look) -> tuple[Row, ...]:
    """What everybody did between two looks; one that was not there, or began another life, shows no rate yet."""
    elapsed_s = max(now.at_s - before.at_s, 1e-9)

    def rate(name: str, peer: PeerStatus) -> float:
        former = before.peers.get(peer.peer)
        old, new = getattr(former, name, None), getattr(peer, name)
        if former is None or old is None or new is None or former.incarnation != peer.incarnation:
            return 0.0
        return float(max(0.0, (new - old) / elapsed_s))

    rows = [
        Row(
            peer.peer, peer.class_name, peer.kind, peer.run, peer.state, peer.incarnation, peer.recovered,
            rate("calls", peer), rate("upper", peer), rate("committed", peer), peer.calls or 0, peer.lag or 0,
            peer.stash_bytes or 0, peer.stash_cap_bytes or 0, peer.buffer_bytes or 0, peer.level or "",
            bool(peer.is_held_back),
        )
        for peer in now.peers.values()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (-row.calls_per_s, row.peer)))


def view(cluster: Cluster, now: Look, rows: tuple[Row, ...]) -> RenderableType:
    """What goes on, for people."""
    numbers = ("life", "calls/s", "entries/s", "commits/s", "calls", "lag", "stash / cap", "buffers")
    table = show.table_of(("peer", "class", *numbers, "level", "state"), right=numbers)
    for row in rows:
        stash = f"{show.in_units(row.stash_bytes)} / {show.in_units(row.stash_cap_bytes)}"
        table.add_row(
            Text(row.peer), Text(row.class_name or row.kind), str(row.incarnation), f"{row.calls_per_s:,.0f}",
            f"{row.entries_per_s:,.0f}", f"{row.committed_per_s:,.0f}", f"{row.calls:,}", f"{row.lag:,}", stash,
            show.in_units(row.buffer_bytes), row.level,
            Text(f"{row.state.value}{', held back' if row.is_held_back else ''}", show.STYLES[row.state]),
        )  # fmt: skip
    calls = sum(row.calls_per_s for row in rows)
    last = "" if now.last is None else f"; last: {now.last.id}, {show.recovery_line(now.last)}"
    return Group(
        Text(f"cluster: {cluster.address}, round {now.round}, {len(rows)} peers, {calls:,.0f} calls/s"),
        Text(f"recoveries: {now.recoveries}{last}"),
        table,
    )


def as_value(cluster: Cluster, now: Look, rows: tuple[Row, ...]) -> dict[str, Any]:
    """What goes on, for tools."""
    return {
        "address": cluster.address,
        "at": time.time(),
        "round": now.round,
        "recoveries": now.recoveries,
        "last_recovery": None if now.last is None else show.recovery_json(now.last),
        "peers": [row._asdict() for row in rows],
    }


def watch(cluster: Cluster, output: Format, filters: list[str] | None, every_s: float, *, once: bool) -> None:
    """Show it again and again until somebody has seen enough."""
    before = look(cluster)
    chosen((), filters, Row._fields)  # a filter that is none is refused at once
    with _until_quit() as pause:
        if output is not Format.TABLE or once or not sys.stdout.isatty():
            _print_on(cluster, output, filters, before, lambda: pause(every_s), once=once)
            return
        with Live(Text("looking"), console=show.console(), screen=True, auto_refresh=False) as live:
            while pause(every_s):
                now = look(cluster)
                live.update(
                    view(cluster, now, chosen(rates(before, now), filters, Row._fields, tells=False)), refresh=True
                )
                before = now


def _print_on(cluster: Cluster, output: Format, filters: list[str] | None, before: Look, pause: Callable[[], bool], *,
              once: bool) -> None:  # fmt: skip
    while pause():
        now = look(cluster)
        rows = chosen(rates(before, now), filters, Row._fields)
        if output is Format.TABLE:
            show.console().print(view(cluster, now, rows))
        elif output is Format.YAML:
            typer.echo("---\n" + as_text(output, as_value(cluster, now, rows)))
        else:
            typer.echo(as_text(output, as_value(cluster, now, rows), in_a_line=not once))
        before = now
        if once:
            return


@contextmanager
def _until_quit() -> Iterator[Callable[[float], bool]]:
    """Pauses that end at q or Ctrl-C, which are noted and not raised: Ray's client loses what it is struck by."""
    told = False
    reading, writing = os.pipe()

    def on_interrupted(*_: object) -> None:
        nonlocal told
        told = True
        os.write(writing, b"q")

    def pause(seconds: float) -> bool:
        ends_at = time.monotonic() + seconds
        while not told and (left := ends_at - time.monotonic()) > 0:
            watched = [reading, *([sys.stdin] if is_terminal else [])]
            ready, _, _ = select.select(watched, [], [], left)
            if sys.stdin in ready and sys.stdin.read(1) in QUIT:
                return False
        return not told

    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    before = signal.signal(signal.SIGINT, on_interrupted)
    settings = termios.tcgetattr(sys.stdin) if is_terminal else None
    try:
        if is_terminal:
            tty.setcbreak(sys.stdin)
        yield pause
    finally:
        if settings is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
        signal.signal(signal.SIGINT, before)
        os.close(reading)
        os.close(writing)
