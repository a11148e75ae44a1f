"""Spans: OpenTelemetry for calls and recoveries, in processes whose user has given it a tracer provider.

Rules:
- Nothing is imported and nothing is paid where there is no provider when a peer begins to live. Ray's own switch, a
  tracing startup hook, gives one to every process of a cluster.
- One span for each call, where it runs; its parent is the span that it was submitted in. A replayed call has none, and
  neither has what the user's code does within it, as far as samplers heed their parents.
- The context of a call travels beside it, and is no part of it: what replays compare knows nothing of spans. A call
  whose context was lost on the way begins a trace of its own.
- What OpenTelemetry itself reads from clocks and draws is no part of the user's program, and is not recorded.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from lineage_stash.capture.here import paused
from lineage_stash.core import effects, events
from lineage_stash.core.ids import OF_CALL, OF_TASK, PeerId, Ref
from lineage_stash.core.parcels import unwrap
from lineage_stash.on_ray import payloads
from lineage_stash.on_ray.lending import bare
from lineage_stash.on_ray.links import Link
from lineage_stash.shell import address_of

if TYPE_CHECKING:
    from lineage_stash.on_ray.host import Life
    from lineage_stash.on_ray.runtime import Reply, Runtime

TRACER = "lineage_stash"

PRUNED_EVERY = 1024
"""Contexts that are added before those are looked for that nobody needs any more."""

MOST_CONTEXTS = 65536
"""Contexts that were heard of and not used, for instance because their calls had run: the oldest are forgotten."""

Context = dict[str, str]
"""A span in the form in which it travels."""


def is_on() -> bool:
    """Whether this process has a tracer provider; loads nothing to find out."""
    trace = sys.modules.get("opentelemetry.trace")
    return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def trace_submissions(runtime: "Runtime") -> None:
    """Have the calls that a peer submits carry the spans that they were submitted in."""
    if is_on():
        keep_apart()
        Submissions(runtime)


def trace_executions(life: "Life") -> "Executions | None":
    """Have contexts of calls be heard from now on, and the calls be spans, as soon as there is a program."""
    if not is_on():
        return None
    keep_apart()
    return Executions(life)


class Submissions:
    """Remembers in which span each call was submitted until its callee needs it no more, and sends it ahead."""

    def __init__(self, runtime: "Runtime") -> None:
        from opentelemetry import propagate

        self._inject = propagate.inject
        self._runtime = runtime
        self._of_calls: dict[PeerId, dict[int, Context]] = {}
        self._of_tasks: dict[int, Context] = {}
        self._added = 0
        shell = runtime.shell
        self._handle, shell.handle = shell.handle, self._follow
        carriers = shell._carriers
        self._send, carriers[effects.SendMessage] = carriers[effects.SendMessage], self._send_ahead

    def _follow(self, event: object) -> list[effects.Effect]:
        """Runs in the thread that submits, and so in its span."""
        result = self._handle(event)
        if isinstance(event, events.CallSubmitted | events.TaskSubmitted):
            self._note(result)
        elif isinstance(event, events.TaskAssigned):
            placed = self._runtime.peer.program.values.placed.get(event.task)
            context = self._of_tasks.pop(event.task, None)
            if placed is not None and context is not None:
                self._keep(placed, context)
        return result

    def _note(self, result: list[effects.Effect]) -> None:
        program = self._runtime.peer.program
        ref = next((effect.answer for effect in result if isinstance(effect, effects.Resume)), None)
        context: Context = {}
        if isinstance(ref, Ref) and not (program.script or (program.busy and program.repeats)):
            self._inject(context)
        if context and isinstance(ref, Ref) and ref.kind == OF_TASK:
            self._of_tasks[ref.number] = context
        elif context and isinstance(ref, Ref) and ref.kind == OF_CALL:
            self._keep(ref, context)

    def _keep(self, ref: Ref, context: Context) -> None:
        self._of_calls.setdefault(ref.peer, {})[ref.number] = context
        self._added += 1
        if self._added % PRUNED_EVERY == 0:
            self._of_calls = {callee: self._needed(callee, each) for callee, each in self._of_calls.items()}

    def _needed(self, callee: PeerId, contexts: dict[int, Context]) -> dict[int, Context]:
        """Those of calls that may have to be sent again."""
        counterpart = self._runtime.peer.counterparts.get(callee)
        if counterpart is None:
            return {}
        floor = counterpart.outbox.calls.floor
        return {number: context for number, context in contexts.items() if number >= floor}

    def _send_ahead(self, effect: effects.SendMessage) -> None:
        message = effect.message
        if message.calls and (contexts := self._of_calls.get(message.receiver)):
            numbers = range(message.first_call, message.first_call + len(message.calls))
            spans = {str(number): contexts[number] for number in numbers if number in contexts}
            if spans:
                address = address_of(message.receiver, message.receiver_incarnation)
                self._runtime.process.control(address, spans=spans, caller=self._runtime.id)
        self._send(effect)


class Executions:
    """Puts every call of one life that is no replay into a span."""

    def __init__(self, life: "Life") -> None:
        from opentelemetry import propagate, trace

        self._extract = propagate.extract
        self._trace = trace
        self._tracer = trace.get_tracer(TRACER)
        self._life = life
        self._contexts: dict[tuple[str, int], Context] = {}
        process = life.process
        self._on_control, process.on_control = process.on_control, self._hear

    def _hear(self, link: Link, said: dict[str, Any]) -> None:
        if "spans" in said:
            self._contexts |= {(said["caller"], int(number)): each for number, each in said["spans"].items()}
            while len(self._contexts) > MOST_CONTEXTS:
                del self._contexts[next(iter(self._contexts))]
        elif self._on_control is not None:
            self._on_control(link, said)

    def wrap(self, run: "Callable[[bytes, PeerId], Reply]") -> "Callable[[bytes, PeerId], Reply]":
        """What runs calls, with spans around them."""

        def run_in_span(payload: bytes, caller: PeerId) -> "Reply":
            with paused():
                span = self._begin(payload)
                token = self._attach(span)
            try:
                reply = run(payload, caller)
                self._judge(span, reply)
            finally:
                with paused():
                    self._detach(token)
                    span.end()
            return reply

        return run_in_span

    def _begin(self, payload: bytes) -> Any:
        life, call = self._life, self._life.latest
        assert call is not None, "a call runs"
        context = self._contexts.pop((call.call.caller, call.call.seqno), None)
        if life.peer.program.repeats:
            return self._unsampled()
        method = payloads.returns_of(payloads.name_of(payload))[0]
        attributes = {
            "lineage_stash.peer": life.id, "lineage_stash.incarnation": life.incarnation,
            "lineage_stash.caller": call.call.caller, "lineage_stash.seqno": call.call.seqno,
            "lineage_stash.index": life.peer.program.ran_at,
        }  # fmt: skip
        # Without a context of its own it has no parent: not Ray's span for the life of this process, either.
        parent = (
            self._trace.set_span_in_context(self._trace.INVALID_SPAN) if context is None else self._extract(context)
        )
        return self._tracer.start_span(
            life.program.title(method), context=parent,
            kind=self._trace.SpanKind.CONSUMER, attributes=attributes,
        )  # fmt: skip

    def _unsampled(self) -> Any:
        """A span that records nothing, and has none below it recorded."""
        trace = self._trace
        return trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False, trace_flags=trace.TraceFlags(0)))

    def _attach(self, span: Any) -> Any:
        from opentelemetry import context

        return context.attach(self._trace.set_span_in_context(span))

    def _detach(self, token: Any) -> None:
        from opentelemetry import context

        context.detach(token)

    def _judge(self, span: Any, reply: "Reply") -> None:
        if span.is_recording() and payloads.is_error(bare(unwrap(reply[0])[0])):
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))


def trace_recovery(record: dict[str, Any], phases: tuple[str, ...]) -> None:
    """A recovery is over: a span for it, from when the death was noticed, and one for each phase."""
    if not is_on():
        return
    from opentelemetry import trace

    tracer = trace.get_tracer(TRACER)
    at = round(record["noticed_at"] * 1e9)
    attributes = {
        f"lineage_stash.{name}": record[name]
        for name in ("peer", "incarnation", "round", "reason", "host", "replayed", "pid")
    }
    # Without a parent: whichever span the coordinator's process is in, this is none of its parts.
    whole = tracer.start_span("recovery", trace.set_span_in_context(trace.INVALID_SPAN), start_time=at,
                              attributes=attributes)  # fmt: skip
    inside = trace.set_span_in_context(whole)
    for phase in phases:
        ends_at = at + round(record[f"{phase}_ms"] * 1e6)
        tracer.start_span(phase, inside, start_time=at).end(ends_at)
        at = ends_at
    whole.end(at)


def keep_apart() -> None:
    """Have OpenTelemetry's own clocks and draws seen by nobody who records, also in spans of the user's."""
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is None or getattr(sdk.Tracer.start_span, KEPT_APART, False):
        return
    for owner, name in ((sdk.Tracer, "start_span"), (sdk.Span, "end"), (sdk.Span, "add_event")):
        setattr(owner, name, _unrecorded(getattr(owner, name)))


KEPT_APART = "_lineage_stash_kept_apart"


def _unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with paused():
            return function(*args, **kwargs)

    setattr(call, KEPT_APART, True)
    return call
