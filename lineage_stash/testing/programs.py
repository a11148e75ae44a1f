"""Programs: small but nasty. A plan is data, so that a whole run follows from its seed and can be shrunk.

A plan is a list of steps. Actors keep a checksum over everything they do and see, in order, and put it into every
reply, so that any difference in order, reads or values shows up in someone's state.
"""

from collections.abc import Generator
from random import Random
from typing import Any
from zlib import crc32

import msgspec

from lineage_stash.core import events
from lineage_stash.core.ids import PeerId, Ref, Seqno

Step = list[Any]
Plan = list[Step]
Running = Generator[object, Any, None]

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


def actor_name(number: int) -> PeerId:
    """The id of an actor by its number."""
    return PeerId(f"a{number}")


class State:
    """An actor's whole state: a checksum over its past, how many steps that was, and the refs it keeps."""

    def __init__(self, packed: bytes = b"") -> None:
        self.chain: int
        self.steps: int
        self.kept: list[tuple[str, int]]
        self.chain, self.steps, self.kept = _decode(packed) if packed else (0, 0, [])

    def pack(self) -> bytes:
        """The state as bytes."""
        return _encode((self.chain, self.steps, self.kept))

    def mix(self, seen: bytes) -> None:
        """Take in something that was done or seen."""
        self.chain = crc32(seen, self.chain)
        self.steps += 1


def run_plan(state: State, plan: Plan) -> Running:
    """Carry out a plan; every yield is an event for the peer, answered by what it resumes with."""
    loose: list[Ref] = []
    for kind, *arguments in plan:
        if kind == "mix":
            state.mix(_encode(arguments))
        elif kind == "read":
            state.mix((yield events.ReadStarted("draw")))
        elif kind == "emit":
            yield events.OutputEmitted(state.pack())
        elif kind == "branch":
            drawn = yield events.ReadStarted("draw")
            yield from run_plan(state, arguments[drawn[0] % len(arguments)])
        elif kind == "call":
            yield from _call(state, loose, *arguments)
        elif kind == "keep":
            ref = yield events.CallSubmitted(actor_name(arguments[0]), _encode((0, arguments[1])))
            state.kept.append((ref.callee, ref.seqno))
        elif kind == "collect":
            kept, state.kept = state.kept, []
            for value in (yield events.GetStarted(tuple(Ref(PeerId(callee), Seqno(seqno)) for callee, seqno in kept))):
                state.mix(value)
        elif kind == "first":
            yield from _first(state, arguments[0])
    for ref in loose:
        state.mix((yield events.GetStarted((ref,)))[0])


def _call(state: State, loose: list[Ref], how: str, callee: int, plan: Plan) -> Running:
    """Call and wait, call and collect at the end, or call and forget."""
    payload = _encode((state.steps if how == "get" else 0, plan))
    ref = yield events.CallSubmitted(actor_name(callee), payload, how != "forget")
    if how == "get":
        state.mix((yield events.GetStarted((ref,)))[0])
    elif how == "later":
        loose.append(ref)


def _first(state: State, calls: list[tuple[int, Plan]]) -> Running:
    """Call several and act on who answered first."""
    refs = []
    for callee, plan in calls:
        refs.append((yield events.CallSubmitted(actor_name(callee), _encode((0, plan)))))
    ready = yield events.WaitStarted(tuple(refs), 1)
    state.mix(repr(ready).encode())
    for value in (yield events.GetStarted(tuple(refs))):
        state.mix(value)


def run_call(state: State, payload: bytes) -> Running:
    """What an actor does when it is called: mix in the arguments, carry out the plan, answer with the checksum."""
    state.mix(payload)
    yield from run_plan(state, _decode(payload)[1])
    yield events.CallFinished(_encode(state.chain))


def run_main(state: State, plan: Plan) -> Running:
    """What a driver does."""
    yield from run_plan(state, plan)
    yield events.RetireAsked()


def without_emits(plan: Plan) -> Plan:
    """The same plan without outputs, which would wait for the store."""
    kept: Plan = []
    for step in plan:
        if step[0] == "call":
            kept.append([*step[:3], without_emits(step[3])])
        elif step[0] == "keep":
            kept.append([*step[:2], without_emits(step[2])])
        elif step[0] == "branch":
            kept.append(["branch", *map(without_emits, step[1:])])
        elif step[0] == "first":
            kept.append(["first", [(callee, without_emits(inner)) for callee, inner in step[1]]])
        elif step[0] != "emit":
            kept.append(step)
    return kept


def draw_plan(draw: Random, actors: int, above: int, depth: int, length: int) -> Plan:
    """A random plan whose waiting calls go only to actors above `above`, so that waits have no cycle; others may."""
    return [_draw_step(draw, actors, above, depth) for _ in range(length)]


def _draw_step(draw: Random, actors: int, above: int, depth: int) -> Step:
    choice = draw.random()
    higher = list(range(above + 1, actors))
    if depth == 0 or choice < 0.12:
        return ["read"] if choice < 0.06 else ["mix", int(choice * 1000)]
    if choice < 0.2:
        return ["emit"]
    if choice < 0.24:
        return ["collect"]
    if choice < 0.3:
        return ["branch", draw_plan(draw, actors, above, depth - 1, 1), draw_plan(draw, actors, above, depth - 1, 1)]
    if choice < 0.4:
        callee = draw.randrange(actors)
        return ["call", "forget", callee, draw_plan(draw, actors, actors, 0, 1)]
    if not higher:
        return ["read"]
    if choice < 0.52 and len(higher) > 1:
        chosen = draw.sample(higher, 2)
        return ["first", [(callee, draw_plan(draw, actors, callee, depth - 1, 1)) for callee in chosen]]
    callee = draw.choice(higher)
    if choice > 0.9:
        return ["keep", callee, draw_plan(draw, actors, callee, depth - 1, 1)]
    how = "get" if choice < 0.75 else "later"
    return ["call", how, callee, draw_plan(draw, actors, callee, depth - 1, draw.randrange(1, 3))]
