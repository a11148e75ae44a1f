"""The oracle: what a run delivered, in the vocabulary of recovery semantics, from its replies and its last state.

What an observer of a keyed stream sees are the replies, which the truth gives for every call, and the state at the
end. Precise: all as without failure. Repeating: so too, but some calls were applied more than once where nobody saw
it in a reply. Convergent: some replies differ, and the last state is right. Divergent: the last state is wrong. Gap:
something is missing, of the state or of the replies. Detected: the system has said that it lost something.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.suite.driving import Reply
from benchmarks.suite.records import Semantics

ORDER: tuple[Semantics, ...] = ("precise", "repeating", "convergent", "divergent", "gap")
"""From the best to the worst."""


class Judged(NamedTuple):
    """What was delivered, and what showed it, in one line."""

    delivered: Semantics
    why: str = ""


def judge(replies: Sequence[Reply], expected: Mapping[tuple[int, str], Any], state: Mapping[str, int],
          truth: Mapping[str, int], detections: tuple[type[BaseException], ...] = ()) -> Judged:  # fmt: skip
    """Replies by record and lane, and counts by key, against the truth."""
    failed = [reply for reply in replies if reply.error is not None]
    detected = [reply for reply in failed if isinstance(reply.error, detections)]
    if detected:
        return Judged("detected", f"{len(detected)} calls raised {type(detected[0].error).__name__}")
    answered = Counter((reply.number, reply.lane) for reply in replies if reply.error is None)
    missing = [call for call in expected if call not in answered]
    if missing:
        why = f": {type(failed[0].error).__name__}" if failed else ""
        return Judged("gap", f"{len(missing)} of {len(expected)} calls have no answer{why}")
    judged = judge_state(state, truth)
    if judged.delivered != "precise":
        return judged
    differing = [r for r in replies if r.error is None and r.value != expected.get((r.number, r.lane))]
    if differing:
        return Judged("convergent", f"{len(differing)} replies differ from the truth, the last state does not")
    repeated = sum(count - 1 for count in answered.values())
    return Judged("repeating", f"{repeated} replies came again") if repeated else Judged("precise")


def judge_state(state: Mapping[str, int], truth: Mapping[str, int]) -> Judged:
    """Counts by key against the truth."""
    less = sum(max(0, count - state.get(key, 0)) for key, count in truth.items())
    more = sum(max(0, count - truth.get(key, 0)) for key, count in state.items())
    if more:
        return Judged("divergent", f"{more} counted more often than once" + (f", {less} not at all" if less else ""))
    return Judged("gap", f"{less} of {sum(truth.values())} are missing from the state") if less else Judged("precise")


def keeps(promised: Semantics, delivered: Semantics) -> bool:
    """Whether a run has delivered what was promised, or better."""
    if promised == "detected":
        return delivered in ("detected", "precise")
    return delivered in ORDER and promised in ORDER and ORDER.index(delivered) <= ORDER.index(promised)
