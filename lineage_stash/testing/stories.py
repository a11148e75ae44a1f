"""Stories: what happened to whom, in words, for the one moment when somebody needs it."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lineage_stash.core import effects, events
from lineage_stash.core.batch import Range
from lineage_stash.core.channel import UNNUMBERED, Message
from lineage_stash.core.history import Decision

if TYPE_CHECKING:
    from lineage_stash.testing.world import World

MOST_LINES = 4000
MOST_TOLD = 60
UNTOLD = (effects.Resume, events.Ticked, effects.FetchDecisions, effects.FindRecord)


class Story:
    """Notes of everything, kept as references and put into words only when asked."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self._notes: deque[tuple[int, int, str, object]] = deque(maxlen=MOST_LINES)

    def note(self, who: str, event: object, result: list[effects.Effect]) -> None:
        """Something went into a machine, and this came out."""
        world = self.world
        self._notes.append((world.now_ms, world.steps, who, event))
        for effect in result:
            self._notes.append((world.now_ms, world.steps, who, effect))

    def tell(self, who: str, text: str) -> None:
        """Something happened to a process."""
        self._notes.append((self.world.now_ms, self.world.steps, who, text))

    def notes(self) -> Iterator[tuple[int, int, str, object]]:
        """Everything noted: time, step, who, what."""
        return iter(self._notes)

    def headlines(self) -> list[str]:
        """Only what befell processes: deaths, decisions, departures, and replays that caught up."""
        lines = []
        for now_ms, _, who, what in self._notes:
            if isinstance(what, effects.FinishReplay):
                lines.append(f"{now_ms:5} ms  {who:10} has replayed {what.replayed} entries and runs new calls")
            elif isinstance(what, str):
                lines.append(f"{now_ms:5} ms  {who:10} {what}")
        return lines

    def about(self, names: tuple[str, ...]) -> list[str]:
        """The last notes that touch any of `names`."""
        lines = []
        for now_ms, step, who, what in self._notes:
            if isinstance(what, UNTOLD):
                continue
            told = any(who.split("@")[0] == name.split("@")[0] for name in names)
            if told or isinstance(what, str) or who.startswith("c"):
                lines.append(f"{now_ms:5} ms  step {step:4}  {who:8}  {say(what)}")
        return lines[-MOST_TOLD:]


def say(what: object) -> str:
    """An event, an effect or a decision in words."""
    if isinstance(what, str):
        return what
    if isinstance(what, events.MessageArrived):
        return f"← {_message(what.message)}"
    if isinstance(what, effects.SendMessage):
        return f"→ {_message(what.message)}"
    if isinstance(what, Decision):
        begun = ", ".join(f"{b.peer}@{b.incarnation} begins at {b.lower}" for b in what.beginnings)
        return "; ".join(part for part in (begun, f"gone: {', '.join(what.gone)}" if what.gone else "") if part)
    if isinstance(what, effects.RunCall):
        return f"runs {what.call}"
    fields = what._asdict() if hasattr(what, "_asdict") else {}
    shown = ", ".join(f"{name}={_short(value)}" for name, value in fields.items())
    return f"{type(what).__name__}({shown})"


def _message(message: Message) -> str:
    parts = [f"{message.sender}@{message.sender_incarnation}→{message.receiver}@{message.receiver_incarnation}"]
    parts.append("acknowledgement" if message.number == UNNUMBERED else f"message {message.number}")
    if message.calls:
        parts.append(f"calls [{message.first_call}, {message.first_call + len(message.calls)})")
    if message.replies:
        parts.append(f"replies [{message.first_reply}, {message.first_reply + len(message.replies)})")
    if message.batch.ranges:
        parts.append("with " + ", ".join(map(_range, message.batch.ranges)))
    if message.batch.needs:
        parts.append("needs " + ", ".join(f"{peer}<{upper}" for peer, upper in message.batch.needs))
    if message.batch.committed:
        parts.append("committed " + ", ".join(f"{peer}<{upper}" for peer, upper in message.batch.committed))
    return " ".join(parts) + f" (acknowledges {message.acknowledged}, round {message.round})"


def _range(piece: Range) -> str:
    return f"{piece.peer}@{piece.incarnation}[{piece.lower}, {piece.upper})"


def _short(value: object) -> str:
    if isinstance(value, tuple) and value and all(isinstance(item, Range) for item in value):
        return "[" + ", ".join(map(_range, value)) + "]"
    text = str(value)
    return text if len(text) <= 90 else text[:87] + "…"
