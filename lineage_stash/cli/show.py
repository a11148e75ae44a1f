"""Showing what was found: tables for people, JSON and YAML for tools. Nothing is said that is not in the values."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lineage_stash.cli.doctor import Check, Verdict, has_problem
from lineage_stash.cli.records import Recovery
from lineage_stash.cli.runs import RunStatus
from lineage_stash.cli.status import PeerStatus, Service, State, Status
from lineage_stash.on_ray.recoveries import in_one_line

NODE_DIGITS = 8
FILE_WIDTH = 200
"""Columns where there is no terminal to ask: wide enough that rows of ordinary length stay on one line."""

UNBOUNDED_WIDTH = 10_000

PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
YAML_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
"""What YAML would not take for a word."""

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

PHASES = ("detect", "gather", "settle", "start", "restore", "replay")

STYLES = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.PROBLEM: "bold red",
    State.STARTING: "yellow",
    State.ALIVE: "green",
    State.RECOVERING: "yellow",
    State.AWAY: "dim",
    State.KILLED: "dim",
    State.RETIRED: "dim",
    State.GONE: "dim",
}


def console() -> Console:
    """Where tables go."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=FILE_WIDTH)


# status


def status_table(status: Status, runs: Iterable[RunStatus] = (), last: Recovery | None = None) -> RenderableType:
    """Status, for people."""
    services = table_of(("service", "state", "node", "pid", "holds", ""), right=("holds",))
    for service in status.services:
        services.add_row(*_service_row(service))
    peers = peers_table(status.peers)
    lines = (
        f"cluster: {status.address}, round {status.round}" + (f", {status.phase}" if status.phase is not None else ""),
        f"spares: {'unknown, the coordinator does not answer' if status.spares is None else status.spares}",
        f"store: {'none' if status.epoch is None else f'epoch {status.epoch}'}, durability {status.durability}",
        *(f"store: {name} was lost, and is replaced: {first_sentence(why)}" for name, why in status.lost.items()),
        f"promise: {status.promise}",
        f"last recovery: {'none' if last is None else f'{last.id}, {recovery_line(last)}'}",
        *map(run_line, runs),
    )
    return Group(*map(Text, lines), services, peers if status.peers else Text("nobody takes part"))


def peers_table(peers: Iterable[PeerStatus]) -> Table:
    """Peers in a table."""
    numbers = ("pid", "life", "recovered", "calls", "committed", "lag")
    table = table_of(
        ("peer", "class", "node", *numbers, "stash / cap", "level", "state"), right=(*numbers, "stash / cap")
    )
    for peer in peers:
        table.add_row(*_peer_row(peer))
    return table


def run_line(run: RunStatus) -> str:
    """A run in one line."""
    actors = f"{run.actors_alive} actors alive, {run.actors_ended} ended"
    return f"run: {run.run}, {run.state.value}, {actors}{f': {run.entrypoint}' if run.entrypoint else ''}"


def status_json(status: Status, runs: Iterable[RunStatus] = (), last: Recovery | None = None) -> dict[str, Any]:
    """Status, for tools."""
    return {
        "runs": [run._asdict() for run in runs],
        "last_recovery": None if last is None else recovery_json(last),
        **status._asdict(),
        "services": [service._asdict() for service in status.services],
        "peers": [peer._asdict() for peer in status.peers],
    }


def _service_row(service: Service) -> tuple[RenderableType, ...]:
    state = Text("up", "green") if service.up else Text("down", "bold red")
    holds = "" if service.held_bytes is None else in_units(service.held_bytes)
    return service.name, state, _node(service), _number(service.pid), holds, Text(first_sentence(service.found))


def _peer_row(peer: PeerStatus) -> tuple[RenderableType, ...]:
    stash = ""
    if peer.stash_bytes is not None and peer.stash_cap_bytes is not None:
        stash = f"{in_units(peer.stash_bytes)} / {in_units(peer.stash_cap_bytes)}"
    state = f"{peer.state.value}, held back" if peer.is_held_back else peer.state.value
    return (
        Text(peer.peer), Text(peer.class_name or peer.kind), _node(peer), _number(peer.pid), str(peer.incarnation),
        str(peer.recovered), _number(peer.calls), _number(peer.committed), _number(peer.lag), stash, peer.level or "",
        Text(state, STYLES[peer.state]),
    )  # fmt: skip


def _node(at: Service | PeerStatus) -> Text:
    return Text(" ".join(part for part in (at.node[:NODE_DIGITS], at.host) if part))


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


# recoveries


def recoveries_view(console: Console, recoveries: tuple[Recovery, ...]) -> RenderableType:
    """Recoveries, for people: a table where it fits, else a line each."""
    return fitted(console, recoveries_table(recoveries), (f"{one.id}: {recovery_line(one)}" for one in recoveries))


def recoveries_table(recoveries: tuple[Recovery, ...]) -> RenderableType:
    """Recoveries in a table."""
    if not recoveries:
        return Text("nothing has been recovered so far")
    table = table_of(
        ("id", "when", "peer", "life", "noticed", *PHASES, "total", "replayed", "host"),
        right=("life", *PHASES, "total", "replayed"),
    )
    for one in recoveries:
        table.add_row(*_recovery_row(one))
    return Group(table, Text("times in milliseconds, replayed in entries"))


def recoveries_json(recoveries: tuple[Recovery, ...]) -> dict[str, Any]:
    """Recoveries, for tools."""
    return {"recoveries": [recovery_json(recovery) for recovery in recoveries]}


def recovery_json(recovery: Recovery) -> dict[str, Any]:
    """One recovery, for tools."""
    return {"id": recovery.id, **recovery._asdict()}


def recovery_line(recovery: Recovery) -> str:
    """One recovery in one line, for people who follow them."""
    return f"{when(recovery.noticed_at)} {in_one_line(recovery._asdict()).removeprefix('lineage_stash: ')}"


def when(at_s: float) -> str:
    """A moment, in the time of this machine."""
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _recovery_row(one: Recovery) -> tuple[RenderableType, ...]:
    times = (f"{getattr(one, f'{phase}_ms'):.0f}" for phase in PHASES)
    return (
        one.id, when(one.noticed_at), Text(one.peer), str(one.incarnation), Text(one.reason), *times,
        f"{one.total_ms:.0f}", str(one.replayed), Text(one.host),
    )  # fmt: skip


# doctor


def checks_table(checks: tuple[Check, ...]) -> RenderableType:
    """The doctor's findings, for people: what to do stands under what was found."""
    table = table_of(("check", "", "found"))
    for check in checks:
        found = check.found if not check.advice else f"{check.found}\n→ {check.advice}"
        table.add_row(check.name, Text(check.verdict.value, STYLES[check.verdict]), Text(found))
    count = sum(check.verdict is Verdict.PROBLEM for check in checks)
    end = Text("nothing to repair", "green") if count == 0 else Text(f"{count} to repair", "bold red")
    return Group(table, end)


def checks_json(checks: tuple[Check, ...]) -> dict[str, Any]:
    """The doctor's findings, for tools."""
    return {"problem": has_problem(checks), "checks": [check._asdict() for check in checks]}


# what all share


def fitted(console: Console, table: RenderableType, lines: Iterable[str]) -> RenderableType:
    """A table where it fits, else its lines, which read better than folded cells."""
    unbounded = console.options.update(max_width=UNBOUNDED_WIDTH)
    if console.measure(table, options=unbounded).maximum <= console.width:
        return table
    return Group(*map(Text, lines))


def first_sentence(text: str) -> str:
    """What was found, without what follows from it."""
    return text.partition(". ")[0]


def in_units(count: int) -> str:
    """A number of bytes."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {UNITS[unit]}" if unit else f"{count} {UNITS[0]}"


def as_json(value: dict[str, Any], *, indent: int | None = 2) -> str:
    """Text that any tool can read."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def as_yaml(value: Any) -> str:
    """The same as YAML: whatever is not plainly a word is quoted as in JSON, which YAML reads too."""
    return "\n".join(_yaml_lines(value))


def _yaml_lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _under(f"{_scalar(str(key))}:", item)]
    if isinstance(value, list | tuple) and value:
        return [line for item in value for line in _under("-", item)]
    return [_scalar(value)]


def _under(head: str, value: Any) -> list[str]:
    if not isinstance(value, dict | list | tuple) or not value:
        return [f"{head} {_scalar(value)}"]
    below = _yaml_lines(value)
    if head == "-":
        return [f"- {below[0]}", *(f"  {line}" for line in below[1:])]
    return [head, *(f"  {line}" for line in below)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and PLAIN_WORD.fullmatch(value) and value.casefold() not in YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def table_of(columns: Iterable[str], right: tuple[str, ...] = ()) -> Table:
    """An empty table in the manner of all of them."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
