"""Programs: small but nasty. A plan is data, so that a whole run follows from its seed and can be shrunk.

A plan is a list of steps. Actors keep a checksum over everything they do and see, in order, and put it into every
reply, so that any difference in order, reads or values shows up in someone's state. Waits go only to actors further
up, also where they go by way of a ref that was passed on, so that they have no cycle.
"""

from collections.abc import Callable, Generator
from random import Random
from typing import Any
from zlib import crc32

import msgspec

from lineage_stash.core import events
from lineage_stash.core.ids import OF_PARCEL, PeerId, Ref
from lineage_stash.core.parcels import unwrap

Step = list[Any]
Plan = list[Step]
Running = Generator[object, Any, None]

EFFECT = "effect"
"""A reading that is taken by acting on the outside."""

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


def actor_name(number: int) -> PeerId:
    """The id of an actor by its number."""
    return PeerId(f"a{number}")


def runner_name(caller: PeerId, number: int) -> PeerId:
    """The id of a runner of a peer's tasks."""
    return PeerId(f"{caller}.t{number}")


class State:
    """An actor's whole state: a checksum over its past, how many steps that was, and the refs it keeps."""

    def __init__(self, packed: bytes = b"") -> None:
        self.chain: int
        self.steps: int
        self.kept: list[tuple[PeerId, int, int]]
        self.chain, self.steps, self.kept = _decode(packed) if packed else (0, 0, [])

    def pack(self) -> bytes:
        """The state as bytes."""
        return _encode((self.chain, self.steps, self.kept))

    def mix(self, seen: bytes) -> None:
        """Take in something that was done or seen."""
        self.chain = crc32(seen, self.chain)
        self.steps += 1


class Surroundings:
    """What a running call has besides its state: refs that were passed to it, and refs that it returns."""

    def __init__(self, given: list[Ref]) -> None:
        self.given = given
        self.returned: list[Ref] = []


def run_plan(state: State, plan: Plan, around: Surroundings) -> Running:
    """Carry out a plan; every yield is an event for the peer, answered by what it resumes with."""
    loose: list[Ref] = []
    for kind, *arguments in plan:
        if kind == "mix":
            state.mix(_encode(arguments))
        elif kind == "read":
            state.mix((yield events.ReadStarted("draw")))
        elif kind == "emit":
            yield events.OutputEmitted(state.pack())
        elif kind == "commit":
            yield events.CommitStarted()
        elif kind == "effect":
            yield events.CommitStarted()
            state.mix((yield events.ReadStarted(EFFECT)))
        elif kind == "branch":
            drawn = yield events.ReadStarted("draw")
            yield from run_plan(state, arguments[drawn[0] % len(arguments)], around)
        elif kind == "call":
            yield from _call(state, loose, *arguments)
        elif kind == "keep":
            ref = yield events.CallSubmitted(actor_name(arguments[0]), _encode((0, arguments[1])))
            state.kept.append(ref)
        elif kind == "collect":
            kept, state.kept = state.kept, []
            for value in (yield events.GetStarted(tuple(Ref(*ref) for ref in kept))):
                state.mix(unwrap(value)[0])
        elif kind == "first":
            yield from _first(state, arguments[0])
        elif kind in _WITH_REFS:
            yield from _WITH_REFS[kind](state, around, loose, *arguments)
    for ref in loose:
        yield from _get(state, ref)


def _get(state: State, ref: Ref) -> Running:
    """Mix in a value, and the values of the refs in it, which came from the same peer."""
    giver = ref.peer
    value, first, count = unwrap((yield events.GetStarted((ref,)))[0])
    state.mix(value)
    if count:
        yield events.RefsDropped((), (ref,))
    if giver:
        for number in range(first, first + count):
            yield from _get(state, Ref(giver, number, OF_PARCEL))


# steps with refs: passed on, kept, returned, streamed, and those of tasks


def _pass(state: State, _: Surroundings, loose: list[Ref], how: str, callee: int, source: int, plan: Plan) -> Running:
    """Pass on a ref to somebody who opens it, as an argument that is awaited or inside another one."""
    ref = yield events.CallSubmitted(actor_name(source), _encode((0, [["mix", 7], ["read"]])))
    awaited = 1 if how == "await" else 0
    loose.append((yield events.CallSubmitted(actor_name(callee), _encode((0, plan)), True, (ref,), awaited)))
    if how == "drop":
        yield events.RefsDropped((ref,))
    else:
        yield from _get(state, ref)


def _open(state: State, around: Surroundings, _: list[Ref]) -> Running:
    """Look into what was passed."""
    if around.given:
        yield from _get(state, around.given.pop())


def _stow(state: State, around: Surroundings, _: list[Ref]) -> Running:
    """Keep what was passed for a later call to look into."""
    if around.given:
        state.kept.append(around.given.pop())
    yield from ()


def _hand(_: State, around: Surroundings, loose: list[Ref], callee: int) -> Running:
    """Hand on what was passed, without looking into it."""
    if around.given:
        ref = around.given.pop()
        passed = (ref,)
        loose.append((yield events.CallSubmitted(actor_name(callee), _encode((0, [["open"]])), True, passed)))
        yield events.RefsDropped((ref,))


def _return(_: State, around: Surroundings, _loose: list[Ref], source: int) -> Running:
    """Return a ref of a call that may not have been answered yet."""
    around.returned.append((yield events.CallSubmitted(actor_name(source), _encode((0, [["read"]])))))


def _task(state: State, _: Surroundings, loose: list[Ref], how: str, source: int, plan: Plan) -> Running:
    """Have a task run, with or without a ref for it, and wait for it now or later."""
    ref = yield events.CallSubmitted(actor_name(source), _encode((0, [["read"]])))
    passed = (ref,) if how != "plain" else ()
    task = yield events.TaskSubmitted(_encode((0, plan)), True, passed, 1 if how == "await" else 0)
    yield events.RefsDropped((ref,))
    if how == "plain":
        chained = yield events.TaskSubmitted(_encode((0, [["open"]])), True, (task,), 1)
        loose.append(chained)
    value = unwrap((yield events.GetStarted((task,)))[0])[0]
    state.mix(value)


def _put(state: State, _: Surroundings, loose: list[Ref], source: int, callee: int) -> Running:
    """Put a value aside that has a ref in it, look into it, and pass it on."""
    ref = yield events.CallSubmitted(actor_name(source), _encode((0, [["read"]])))
    put = yield events.ValuePut(b"put", (ref,))
    yield events.RefsDropped((ref,))
    loose.append((yield events.CallSubmitted(actor_name(callee), _encode((0, [["open"]])), True, (put,))))
    yield from _get(state, put)
    yield events.RefsDropped((put,))


def _relay(_: State, __: Surroundings, loose: list[Ref], middle: int, source: int, callee: int) -> Running:
    """Pass on the ref of a call that returns a ref itself."""
    ref = yield events.CallSubmitted(actor_name(middle), _encode((0, [["return", source]])))
    loose.append((yield events.CallSubmitted(actor_name(callee), _encode((0, [["open"]])), True, (ref,))))
    yield events.RefsDropped((ref,))


def _yield(state: State, _: Surroundings, _loose: list[Ref]) -> Running:
    """Give the caller an item."""
    yield events.ItemYielded(state.pack())


def _stream(state: State, _: Surroundings, loose: list[Ref], callee: int, plan: Plan) -> Running:
    """Take the items of a call one by one."""
    ref = yield events.CallSubmitted(actor_name(callee), _encode((0, plan)))
    position = 0
    while (item := (yield events.NextStarted(ref, position))) is not None:
        yield from _get(state, item)
        position += 1
    loose.append(ref)


_WITH_REFS: dict[str, Callable[..., Running]] = {
    "pass": _pass, "open": _open, "stow": _stow, "hand": _hand, "return": _return, "task": _task, "yield": _yield,
    "stream": _stream, "put": _put, "relay": _relay,
}  # fmt: skip


def _call(state: State, loose: list[Ref], how: str, callee: int, plan: Plan) -> Running:
    """Call and wait, call and collect at the end, or call and forget."""
    payload = _encode((state.steps if how == "get" else 0, plan))
    ref = yield events.CallSubmitted(actor_name(callee), payload, how != "forget")
    if how == "get":
        yield from _get(state, ref)
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
        state.mix(unwrap(value)[0])


def run_call(state: State, caller: PeerId, wrapped: bytes) -> Running:
    """What an actor does when it is called: mix in the arguments, carry out the plan, answer with the checksum."""
    payload, first, count = unwrap(wrapped)
    state.mix(payload)
    around = Surroundings([Ref(caller, number, OF_PARCEL) for number in range(first, first + count)])
    yield from run_plan(state, _decode(payload)[1], around)
    if around.given:
        yield events.RefsDropped(tuple(around.given))
    yield events.CallFinished(_encode(state.chain), tuple(around.returned))


def run_main(state: State, plan: Plan) -> Running:
    """What a driver does."""
    yield from run_plan(state, plan, Surroundings([]))
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


def with_refs(draw: Random, plan: Plan, actors: int, above: int) -> Plan:
    """The same plan with steps in it, here and in what it calls, that pass refs on, have tasks run, and stream."""
    richer: Plan = []
    for step in plan:
        if step[0] == "call" and step[1] != "forget":
            richer.append([*step[:3], with_refs(draw, step[3], actors, step[2])])
        else:
            richer.append(step)
        if draw.random() < 0.6:
            richer.extend(_draw_steps_with_refs(draw, actors, above))
    return richer


_INNER_PLAN = {"call": 3, "keep": 2, "task": 3, "pass": 4}
"""Where in a step the plan of whoever is called is."""


def with_effects(draw: Random, plan: Plan) -> Plan:
    """The same plan with steps in it, here and in what it calls, that wait for a commit, most of them to act then."""
    richer: Plan = []
    for step in plan:
        at = _INNER_PLAN.get(step[0])
        richer.append(step if at is None else [*step[:at], with_effects(draw, step[at]), *step[at + 1 :]])
        if draw.random() < 0.4:
            richer.append([EFFECT] if draw.random() < 0.7 else ["commit"])
    return richer


def _draw_steps_with_refs(draw: Random, actors: int, above: int) -> Plan:
    higher = list(range(above + 1, actors))
    if not higher:
        return []
    source = draw.choice(higher)
    choice = draw.random()
    between = [actor for actor in higher if actor < source]
    if choice < 0.35 and between:
        callee = draw.choice(between)
        further = [actor for actor in between if actor > callee]
        plan: Plan = [["open"]]
        if draw.random() < 0.4:
            plan = [["hand", draw.choice(further)]] if further else [["stow"]]
        return [["pass", draw.choice(("await", "nest", "drop")), callee, source, plan]]
    if choice < 0.45 and between:
        callee = draw.choice(between)
        middles = [actor for actor in between if actor > callee]
        if middles and draw.random() < 0.7:
            return [["relay", draw.choice(middles), source, callee]]
        return [["put", source, callee]]
    if choice < 0.55 and between:
        return [["call", draw.choice(("get", "later")), draw.choice(between), [["return", source]]]]
    if choice < 0.8:
        plan = [*draw_plan(draw, actors, above, 1, 1), ["open"]]
        return [["task", draw.choice(("plain", "await", "nest")), source, plan]]
    return [["stream", source, [["yield"]] * draw.randrange(3)]]
