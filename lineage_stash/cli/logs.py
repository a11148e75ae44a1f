"""Logs in words: the entries of a peer, each as one value that says what was decided there, read part by part.

Rules:
- What is asked for is read, and no more than a page around it. Bodies are decoded where one of their entries is wanted.
- An entry counts only as far as no later incarnation began before it.
- A prefix that a checkpoint covers is truncated in the store; what is left begins at `base`, and that is said.
- The payload of a call may not be in the log: whoever still has it is asked for it, and nobody may have it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from lineage_stash import codec
from lineage_stash.cli.sources import NotFound, Source, body_of, newest
from lineage_stash.cli.words import UNKNOWN, Called, call_in_words, reading_in_words, value_in_words
from lineage_stash.core.entry import Assigned, Entry, Forwarded, Got, Ran, Read, Waited, content_bytes
from lineage_stash.core.history import limit_in
from lineage_stash.core.ids import CallId, Incarnation, Index, PeerId
from lineage_stash.store.contract import Item, Span

DECODED_SPANS = 64
"""Bodies that are kept decoded; each has some hundred entries."""

BACK = 2048
"""How far before an index is read as well, because whoever asks for one mostly asks for those before it next."""

RAN, READ, WAITED, GOT, ASSIGNED, FORWARDED = "ran", "read", "waited", "got", "assigned", "forwarded"


class LogEntry(NamedTuple):
    """One determinant, for people and tools."""

    peer: str
    at: int
    """Its index in the log."""
    incarnation: int
    kind: str
    """What was decided: ran, read, waited, got, assigned or forwarded."""
    words: str
    call: str
    """The id of the call that ran; empty for others."""
    caller: str
    seqno: int | None
    method: str
    """Of the call that ran; `?` where nobody has its payload any more."""
    payload_bytes: int
    """What the entry holds by content."""
    needs: tuple[tuple[str, int], ...]
    """What the peer had come to depend on since its entry before: all of these logs below these indices."""


class LogPart(NamedTuple):
    """A part of a log."""

    peer: str
    where: str
    base: int
    """What lies below is covered by a checkpoint, and truncated."""
    upper: int
    """How long the log is in the store; a live peer may have more that is not there yet."""
    incarnations: tuple[tuple[int, int], ...]
    """Every incarnation, and at which index it began."""
    checkpoints: tuple[int, ...]
    """At which indices the store has checkpoints."""
    retired: bool
    """Whether its record is there: it has left for good."""
    entries: tuple[LogEntry, ...]


class LogView:
    """One log, of which what was read is kept."""

    def __init__(self, source: Source, peer: PeerId) -> None:
        item = source.item(peer)
        if item is None:
            raise NotFound(f"there is nothing of {peer} in {source.where}: it has no log, or it was removed")
        self.peer = peer
        self.source = source
        self.item: Item = item
        self.segments = source.segments(item)
        self.base, self.upper = item.base, self._surviving_upper(item)
        self._spans: dict[Index, Span] = {}
        self._lowers: list[Index] = []
        self._decoded: dict[Index, tuple[Entry, ...]] = {}

    def _surviving_upper(self, item: Item) -> Index:
        limit = limit_in(self.segments, item.last_writer)
        return item.upper if limit is None else min(item.upper, limit)

    def span_at(self, index: int) -> Span | None:
        """The span that holds an index, read if it was not yet; None if the log does not have it."""
        if not self.base <= index < self.upper:
            return None
        found = self._known(index)
        if found is None:
            self._fetch(Index(max(self.base, index - BACK)), index)
            found = self._known(index)
        return found

    def _known(self, index: int) -> Span | None:
        position = bisect_right(self._lowers, index) - 1
        span = self._spans[self._lowers[position]] if position >= 0 else None
        return span if span is not None and index < span.upper else None

    def _fetch(self, lower: Index, wanted: int) -> None:
        for page in self.source.pages(self.peer, lower):
            for span in page:
                known = self._spans.get(span.lower)
                if known is None or known.upper < span.upper:
                    self._spans[span.lower] = span
            if page and page[-1].upper > wanted:
                break
        self._lowers = sorted(self._spans)

    def decode(self, span: Span) -> tuple[Entry, ...]:
        """The entries of a span, from its lower end on."""
        found = self._decoded.get(span.lower)
        if found is None:
            try:
                found = codec.unpack_span(span._replace(body=body_of(span.body))).entries
            except codec.FrameError as error:
                raise NotFound(f"the log of {self.peer} is damaged at index {span.lower}: {error}") from error
            if len(self._decoded) >= DECODED_SPANS:
                self._decoded.pop(next(iter(self._decoded)))
            self._decoded[span.lower] = found
        return found

    def entry(self, index: int) -> tuple[Incarnation, Entry] | None:
        """The entry at an index, and who wrote it."""
        span = self.span_at(index)
        return None if span is None else (span.incarnation, self.decode(span)[index - span.lower])

    def entries(self, lower: int, upper: int) -> Iterator[tuple[Index, Incarnation, Entry]]:
        """The entries of a range, as far as the log has them."""
        at = max(lower, self.base)
        end = min(upper, self.upper)
        while at < end:
            span = self.span_at(at)
            if span is None:
                return
            for entry in self.decode(span)[at - span.lower :]:
                if at >= end:
                    return
                yield Index(at), span.incarnation, entry
                at += 1

    def call_at(self, index: int) -> Index | None:
        """Where the call begins that ran at an index: the last one at or before it; None if that is truncated."""
        at = min(index, self.upper - 1)
        while (span := self.span_at(at)) is not None:
            entries = self.decode(span)
            for position in range(at - span.lower, -1, -1):
                if isinstance(entries[position], Ran):
                    return Index(span.lower + position)
            at = span.lower - 1
        return None

    def find_call(self, caller: PeerId, seqno: int) -> Index:
        """Where a call ran: seqnos of one caller grow along the log, so that few of its parts are looked into."""
        lower, upper = max(self.base, seqno), self.upper
        last: int | None = None
        while lower < upper:
            middle = (lower + upper) // 2
            found = self._next_of(caller, middle, upper)
            if found is None:
                upper = Index(middle)
            elif found[1] == seqno:
                return found[0]
            else:
                last = found[1]
                lower, upper = (Index(found[0] + 1), upper) if found[1] < seqno else (lower, Index(middle))
        raise NotFound(self._no_call(caller, seqno, last))

    def _next_of(self, caller: PeerId, lower: int, upper: int) -> tuple[Index, int] | None:
        for index, _, entry in self.entries(lower, upper):
            if isinstance(entry, Ran) and entry.caller == caller:
                return index, entry.seqno
        return None

    def _no_call(self, caller: PeerId, seqno: int, last: int | None) -> str:
        call = CallId(caller, self.peer, seqno)  # type: ignore[arg-type]
        if self.base and (last is None or last > seqno):
            return f"{call} is in no log any more: a checkpoint at index {self.base} of {self.peer} may cover it"
        return f"{call} is not in the log of {self.peer}, which ends at index {self.upper}"


def read_log(source: Source, peer: PeerId, *, lower: int | None = None, upper: int | None = None,
             tail: int = 100) -> LogPart:  # fmt: skip
    """A range of a log, or its last entries."""
    view = LogView(source, peer)
    end = min(view.upper, view.upper if upper is None else upper)
    begin = max(view.base, end - tail if lower is None else lower)
    return LogPart(
        peer=peer,
        where=source.where,
        base=view.base,
        upper=view.upper,
        incarnations=tuple((int(life), int(began)) for life, began in view.segments),
        checkpoints=tuple(checkpoint.upper for checkpoint in view.item.checkpoints),
        retired=(last := newest(view.item.checkpoints)) is not None and last.final,
        entries=tuple(describe_all(view, begin, end)),
    )


def describe_all(view: LogView, lower: int, upper: int) -> list[LogEntry]:
    """The entries of a range in words, each call with its method as far as somebody knows it."""
    found = list(view.entries(lower, upper))
    calls = payloads_of(view, [entry for _, _, entry in found])
    return [describe(view, index, life, entry, calls) for index, life, entry in found]


def payloads_of(view: LogView, entries: list[Entry]) -> dict[tuple[PeerId, int], bytes]:
    """The payloads of the calls among some entries, from the log itself and from their callers."""
    found: dict[tuple[PeerId, int], bytes] = {}
    missing: dict[PeerId, list[int]] = {}
    for entry in entries:
        if isinstance(entry, Ran) and entry.payload is not None:
            found[entry.caller, entry.seqno] = entry.payload
        elif isinstance(entry, Ran):
            missing.setdefault(entry.caller, []).append(entry.seqno)
    for caller, seqnos in missing.items():
        brought = view.source.calls(caller, view.peer, min(seqnos), max(seqnos) + 1)
        found |= {(caller, seqno): payload for seqno, payload in brought.items()}
    return found


def describe(view: LogView, index: int, life: int, entry: Entry, calls: dict[tuple[PeerId, int], bytes]) -> LogEntry:
    """One entry in words."""
    called: Called | None = None
    call = ""
    if isinstance(entry, Ran):
        payload = calls.get((entry.caller, entry.seqno))
        called = None if payload is None else call_in_words(payload, view.source.function_name)
        call = str(CallId(entry.caller, view.peer, entry.seqno))
    is_call = isinstance(entry, Ran)
    return LogEntry(
        peer=view.peer,
        at=index,
        incarnation=life,
        kind=KINDS[type(entry)],
        words=in_words(entry, called),
        call=call,
        caller=entry.caller if isinstance(entry, Ran) else "",
        seqno=entry.seqno if isinstance(entry, Ran) else None,
        method=(called.method if called is not None else UNKNOWN) if is_call else "",
        payload_bytes=content_bytes(entry),
        needs=tuple((str(peer), int(upper)) for peer, upper in entry.needs),
    )


KINDS: dict[type, str] = {
    Ran: RAN, Read: READ, Waited: WAITED, Got: GOT, Assigned: ASSIGNED, Forwarded: FORWARDED,
}  # fmt: skip


def in_words(entry: Entry, called: Called | None) -> str:
    """What was decided, in words."""
    match entry:
        case Ran():
            return f"ran {called.text if called is not None else UNKNOWN}, call #{entry.seqno} of {entry.caller}"
        case Read():
            return reading_in_words(entry.value)
        case Waited():
            return f"waited: {_positions(entry.ready)} had come"
        case Got():
            return f"got value {entry.number} of {entry.giver}: {value_in_words(entry.value)}"
        case Assigned():
            return f"task {entry.task} went to {entry.runner}"
        case Forwarded():
            return f"passed on {entry.refs} refs in value {entry.number} to {entry.receiver}"


def _positions(ready: tuple[int, ...]) -> str:
    return ", ".join(map(str, ready[:8])) + (f" and {len(ready) - 8} more" if len(ready) > 8 else "") or "none"


def as_dict(entry: LogEntry) -> dict[str, Any]:
    """An entry for tools."""
    return {**entry._asdict(), "needs": dict(entry.needs)}
