"""Causes: the causal past of a call, of a reading or of any other entry, as nodes and edges.

A node is a call with all that was decided while it ran, or one entry of a script that keeps a log, or a place where the
past ends: a script without a log, a prefix that a checkpoint covers, a partition of a Spark stage. Edges lead from a
cause to its effect:

- *called*: the effect is a call that was made by the cause. The log of a script says so itself. That of an actor does
  not, but mostly the callee's log says how far that of the caller was when the call came. Where it does not, because
  that was committed by then or came with an earlier call, the cause is *probable*: the last call that the caller ran
  before it heard from the callee again, or before it is known to have made its next call.
- *order*: the effect ran right after the cause in the same log, and may depend on the state that this left.
- *heard*: a reply or a value came, and with it all that its sender depended on: up to there its log is the past.
- *read*: the effect was given a partition of a Spark stage.

A call that waits for one that it has made is both its cause and its effect: nodes go on for a while.

Not told: what was committed by the time it came. It cannot be lost, so that logs do not name it.
"""

import re
from collections import deque
from typing import Any, NamedTuple

from lineage_stash.capture import readings
from lineage_stash.cli.logs import LogView, describe, payloads_of
from lineage_stash.cli.sources import NotFound, Source
from lineage_stash.cli.words import PartitionRecord, call_in_words, partition_in, value_in_words
from lineage_stash.core.entry import Entry, Got, Ran, Read
from lineage_stash.core.ids import CallId, PeerId

MOST_DETAILS = 24
"""Of what was decided during one call."""

MOST_OF_A_CALL = 512
"""Entries of one call that are looked at."""

LOOKED_THROUGH = 2048
"""Entries of a caller that are looked through for what it had heard of its callee."""

MOST_OF_A_SCRIPT = 50_000
"""Entries of a script that are looked through for a call."""

UNNAMED = 0
"""Below which index something is of which a log does not say where it is."""

CALLED, ORDER, HEARD, GIVEN = "called", "order", "heard", "read"

AT_INDEX = re.compile(r"(?P<peer>.+):(?P<index>\d+)")
CALL_ID = re.compile(r"(?P<caller>.+?)(?:→|->)(?P<callee>.+)#(?P<seqno>\d+)")
EFFECT_KEY = re.compile(r"(?P<peer>.+)!(?P<number>\d+)")


class Node(NamedTuple):
    """Something that happened."""

    id: str
    """`peer:index`; of a place where the past ends, another name."""
    kind: str
    """call, entry, partition or end."""
    peer: str
    at: int | None
    """Where in the log it begins."""
    title: str
    call: str
    """The id of the call; empty for others."""
    details: tuple[str, ...]
    """What was decided meanwhile, in order."""


class Edge(NamedTuple):
    """One thing that another one depends on."""

    cause: str
    effect: str
    kind: str
    probable: bool = False
    """Whether the logs do not say so for certain."""


class Past(NamedTuple):
    """What something depends on, as far as it was followed."""

    asked: str
    root: str
    nodes: tuple[Node, ...]
    """The root first, then in the order of their distance from it."""
    edges: tuple[Edge, ...]
    cut: int
    """How many causes were not followed, because they are too far or too many."""

    def causes_of(self, effect: str) -> list[tuple[Edge, Node]]:
        """The causes of one node."""
        by_id = {node.id: node for node in self.nodes}
        return [(edge, by_id[edge.cause]) for edge in self.edges if edge.effect == effect]


class _Step(NamedTuple):
    """A node, and where its causes are to be looked for."""

    node: Node
    causes: "tuple[tuple[str, _Place | Node], ...]"


class _Place(NamedTuple):
    """Somewhere in a log: the last thing before an index, or what a script did when it made a call."""

    peer: PeerId
    below: int
    made: CallId | None = None
    """The call that was made there, if that is what it is about."""
    ran_at: int = 0
    """Where that call ran."""
    since: int = 0
    """What was known of the caller before: from where on to look where `below` is not known."""
    until: int = 0
    """What was known of the caller next."""


def find(source: Source, what: str) -> tuple[PeerId, int]:
    """Which entry is meant by `PEER:INDEX`, `CALLER->CALLEE#SEQNO` or the key of an effect, `PEER!NUMBER`."""
    called = CALL_ID.fullmatch(what)
    if called is not None:
        callee, caller = source.resolve(called["callee"]), _caller(source, called["caller"])
        return callee, LogView(source, callee).find_call(caller, int(called["seqno"]))
    at = AT_INDEX.fullmatch(what)
    if at is not None:
        return source.resolve(at["peer"]), int(at["index"])
    effect = EFFECT_KEY.fullmatch(what)
    if effect is not None:
        from lineage_stash.cli.replaying import find_effect  # loads what runs a history again

        peer = source.resolve(effect["peer"])
        return peer, find_effect(source, peer, int(effect["number"]))
    raise NotFound(
        f"{what!r} names no call: give PEER:INDEX, as `stash log` shows it, CALLER->CALLEE#SEQNO, or an effect's key"
    )


def _caller(source: Source, name: str) -> PeerId:
    try:
        return source.resolve(name)
    except NotFound:
        return PeerId(name)  # a script without a log may be on no record any more


def past_of(source: Source, what: str, *, depth: int = 4, most: int = 60) -> Past:
    """What a call or an entry depends on: causes of causes up to a depth, and not more than so many."""
    peer, index = find(source, what)
    walk = _Walk(source)
    root = walk.step_at(peer, index)
    steps = {root.node.id: root}
    edges: dict[Edge, None] = {}
    waiting = deque([(root, 0)])
    cut = 0
    while waiting:
        step, distance = waiting.popleft()
        for kind, cause in step.causes:
            found = walk.follow(cause) if distance < depth else None
            if found is None or (found.node.id not in steps and len(steps) >= most):
                cut += 1
                continue
            if found.node.id == step.node.id:
                continue
            edges[Edge(found.node.id, step.node.id, kind, _is_probable(cause, found.node))] = None
            if found.node.id not in steps:
                steps[found.node.id] = found
                waiting.append((found, distance + 1))
    return Past(what, root.node.id, tuple(step.node for step in steps.values()), _strongest(edges), cut)


def _strongest(edges: dict[Edge, None]) -> tuple[Edge, ...]:
    """Between two nodes one edge: that somebody called says more than that one came after the other."""
    order = {CALLED: 0, GIVEN: 1, HEARD: 2, ORDER: 3}
    found: dict[tuple[str, str], Edge] = {}
    for edge in sorted(edges, key=lambda edge: order[edge.kind]):
        found.setdefault((edge.cause, edge.effect), edge)
    return tuple(edge for edge in edges if found[edge.cause, edge.effect] == edge)


class _Walk:
    """Looks things up, each log once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._views: dict[PeerId, LogView | None] = {}

    def view(self, peer: PeerId) -> LogView | None:
        """The log of a peer; None if it has none."""
        if peer not in self._views:
            try:
                self._views[peer] = LogView(self.source, peer)
            except NotFound:
                self._views[peer] = None
        return self._views[peer]

    def step_at(self, peer: PeerId, index: int) -> _Step:
        """What happened at an index that somebody has asked for."""
        view = LogView(self.source, peer)
        self._views[peer] = view
        if index < view.base:
            raise NotFound(f"{peer}:{index} is truncated: a checkpoint at index {view.base} covers it")
        if index >= view.upper:
            raise NotFound(f"{peer}:{index} is not there: its log in {self.source.where} ends at index {view.upper}")
        return self._step(view, index)

    def follow(self, cause: "_Place | Node") -> _Step:
        """A cause with its own causes."""
        if isinstance(cause, Node):
            return _Step(cause, ())
        view = self.view(cause.peer)
        if view is None or not view.upper:
            return _Step(_end(cause.peer, f"{cause.peer}, which keeps no log"), ())
        made = _made_at(view, cause.made) if cause.made is not None and "/" not in view.peer else None
        if made is not None:
            return self._step(view, made)
        if cause.made is not None and cause.below == UNNAMED:
            cause = cause._replace(below=_made_below(view, cause, cause.made.callee))
        if cause.below == UNNAMED:
            return _Step(_end(cause.peer, f"{cause.peer}, somewhere in what it had committed by then"), ())
        if cause.below <= view.base:
            return _Step(_end(cause.peer, f"{cause.peer} below index {view.base}, which a checkpoint covers"), ())
        return self._step(view, min(cause.below, view.upper) - 1)

    def _step(self, view: LogView, index: int) -> _Step:
        begin = view.call_at(index)
        if begin is None:
            return self._entry_step(view, index)
        entries = [(index, entry) for index, _, entry in _of_one_call(view, begin)]
        ran = entries[0][1]
        assert isinstance(ran, Ran), "a call begins with its entry"
        calls = payloads_of(view, [ran])
        payload = calls.get((ran.caller, ran.seqno))
        called = None if payload is None else call_in_words(payload, self.source.function_name)
        values = _values_of(view, begin, ran.caller, called.first_ref, called.refs) if called is not None else []
        described = describe(view, begin, 0, ran, calls)
        text = described.words.removeprefix("ran ").rpartition(", call #")[0]
        details = [describe(view, at, 0, entry, {}).words for at, entry in entries[1 : MOST_DETAILS + 1]]
        if len(entries) > MOST_DETAILS + 1:
            details.append(f"and {len(entries) - MOST_DETAILS - 1} more")
        given = [f"was given {value_in_words(value)}" for value in values if partition_in(value) is None]
        node = Node(f"{view.peer}:{begin}", "call", view.peer, begin, text, described.call, (*given, *details))
        partitions = [found for value in values if (found := partition_in(value)) is not None]
        made = _made(view, begin, ran)
        return _Step(node, (
            (CALLED, made),
            *((GIVEN, _partition_node(found)) for found in partitions),
            *_heard([entry for _, entry in entries], {ran.caller: max(made.below, made.since)}),
            *(((ORDER, _Place(view.peer, begin)),) if begin > 0 else ()),
        ))  # fmt: skip

    def _entry_step(self, view: LogView, index: int) -> _Step:
        """An entry of a script, which runs no calls."""
        found = view.entry(index)
        if found is None:
            return _Step(_end(view.peer, f"{view.peer} below index {view.base}, which a checkpoint covers"), ())
        words = describe(view, index, found[0], found[1], {}).words
        node = Node(f"{view.peer}:{index}", "entry", view.peer, index, words, "", ())
        before = ((ORDER, _Place(view.peer, index)),) if index > 0 else ()
        return _Step(node, (*_heard([found[1]], {}), *before))


def _of_one_call(view: LogView, begin: int) -> list[Any]:
    """The entry of a call, and all up to that of the next one."""
    found: list[Any] = []
    for at in view.entries(begin, begin + MOST_OF_A_CALL):
        if found and isinstance(at[2], Ran):
            break
        found.append(at)
    return found


def _heard(entries: list[Entry], known: dict[PeerId, int]) -> list[tuple[str, _Place]]:
    """What came in while something went on, besides what is known already."""
    uppers: dict[PeerId, int] = {}
    for entry in entries:
        for peer, upper in entry.needs:
            if upper > known.get(peer, 0):
                uppers[peer] = max(upper, uppers.get(peer, 0))
    return [(HEARD, _Place(peer, upper)) for peer, upper in uppers.items()]


def _made(view: LogView, begin: int, ran: Ran) -> _Place:
    """Where a call was made: below what became known of its caller with it, if that was more than before."""
    call, own = CallId(ran.caller, view.peer, ran.seqno), dict(ran.needs).get(ran.caller, UNNAMED)
    since = _known_of(view, range(begin - 1, max(view.base, begin - MOST_OF_A_CALL) - 1, -1), ran.caller)
    if own > since:
        return _Place(ran.caller, own, call, begin, since)
    until = _known_of(view, range(begin + 1, min(view.upper, begin + MOST_OF_A_CALL)), ran.caller, more_than=since)
    return _Place(ran.caller, UNNAMED, call, begin, since, until)


def _known_of(view: LogView, indices: range, caller: PeerId, more_than: int = UNNAMED) -> int:
    """Up to where the log of a caller is known by the first of these entries that says more than that of it."""
    for index in indices:
        found = view.entry(index)
        upper = UNNAMED if found is None else dict(found[1].needs).get(caller, UNNAMED)
        if upper > more_than:
            return upper
    return UNNAMED


def _made_below(view: LogView, place: _Place, callee: PeerId) -> int:
    """Below which index of its log an actor has probably made a call: before it heard that the call had run."""
    begin = max(place.since, view.base)
    end = min(view.upper, begin + LOOKED_THROUGH, *([place.until] if place.until else []))
    for index, _, entry in view.entries(begin, end):
        if any(peer == callee and upper > place.ran_at for peer, upper in entry.needs):
            return index
    return end if end in (view.upper, place.until) else place.since


def _is_probable(cause: "_Place | Node", node: Node) -> bool:
    """Whether it was not said where a call was made."""
    if isinstance(cause, Node) or cause.made is None or node.kind != "call":
        return False
    return cause.below == UNNAMED


def _made_at(view: LogView, made: CallId) -> int | None:
    """Where a script made a call: it logs what it does, so that its calls of one callee can be counted."""
    if view.base > 0:
        return None
    did = f"call {made.callee.removeprefix(f'{made.caller}/')}."
    count = 0
    for index, _, entry in view.entries(0, MOST_OF_A_SCRIPT):
        action = readings.action_in(entry.value) if isinstance(entry, Read) else None
        if action is not None and action.startswith(did):
            if count == made.seqno:
                return index
            count += 1
    return None


def _values_of(view: LogView, begin: int, giver: PeerId, first: int, count: int) -> list[bytes]:
    """The values that refs among the arguments of a call stand for, as far as they are logged near it."""
    if not count:
        return []
    wanted = range(first, first + count)
    near = view.entries(max(view.base, begin - MOST_OF_A_CALL), begin + MOST_OF_A_CALL)
    return [entry.value for _, _, entry in near
            if isinstance(entry, Got) and entry.giver == giver and entry.number in wanted]  # fmt: skip


def _partition_node(found: PartitionRecord) -> Node:
    return Node(f"{found.stage}/{found.number}", "partition", found.stage.partition(":")[0], None, str(found), "", ())


def _end(peer: str, title: str) -> Node:
    return Node(peer, "end", peer, None, title, "", ())
