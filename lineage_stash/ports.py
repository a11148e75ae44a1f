"""Ports: what a shell needs from the outside. The simulator implements them, and so does Ray's side.

Addresses are strings. A peer's incarnation lives at `peer@incarnation`, a coordinator at its token, replica n at `n`.
"""

from collections.abc import Callable
from typing import Protocol

from lineage_stash.core.effects import Effect
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import Epoch, Incarnation, Index, Member, NodeId, PeerId, Round
from lineage_stash.store.contract import ReplicaId, ReplicaSet, Ticket

Frame = bytes | tuple[bytes, ...]
"""A frame of the codec, in one piece or in several that belong together."""


def in_one_piece(frame: Frame) -> bytes:
    """A frame as it comes out of a network."""
    return frame if isinstance(frame, bytes) else b"".join(frame)


Dead = tuple[tuple[PeerId, Incarnation], ...]


class Transport(Protocol):
    """Carries frames; may delay, repeat, reorder or lose them."""

    def send(self, address: str, frame: Frame) -> None:
        """Try to bring a frame to an address."""
        ...

    def ask_replica(self, replica: ReplicaId, ticket: Ticket, frame: Frame) -> None:
        """Try to bring a request to a replica; the answer, if any, comes back with the ticket's number."""
        ...


class Outside(Protocol):
    """The world outside the system: where readings come from and outputs go."""

    def take_reading(self, kind: str) -> bytes | None:
        """Read a clock, draw a number, ask a service; None if the answer will come as an event."""
        ...

    def release(self, peer: PeerId, number: int, value: bytes) -> None:
        """Hand an output to its sink, which takes each (peer, number) once."""
        ...

    def report(self, kind: str, text: str) -> None:
        """Tell people."""
        ...


class Membership(Protocol):
    """The registry, and the chain of decisions. Answers come by callback, late or never; asking again is safe."""

    def open_round(self, round_: Round, dead: Dead, then: Callable[[tuple[Member, ...]], None]) -> None:
        """Note who is taken for dead in a round, then answer who is registered and has not retired.

        A peer registers first and reads the note after that, so that one of the two finds the other.
        """
        ...

    def publish(self, decision: Decision, then: Callable[[Decision], None]) -> None:
        """Put a decision into its round's slot unless one is there; answer with the one that stands."""
        ...

    def fetch_decisions(self, after: int, then: Callable[[tuple[Decision, ...]], None]) -> None:
        """The decisions of all rounds above `after`."""
        ...

    def fetch_set(self, after: Epoch, then: Callable[[ReplicaSet], None]) -> None:
        """The newest replica set of the store, if there is one of an epoch above `after`."""
        ...

    def has_retired(self, peer: PeerId, then: Callable[[bool], None]) -> None:
        """Whether a peer has left for good and left a record."""
        ...

    def retire(self, peer: PeerId) -> None:
        """Note that a peer has left."""
        ...

    def start_incarnation(self, peer: PeerId, incarnation: Incarnation, index: Index, node: NodeId) -> None:
        """Start a process for a new life of a peer, there or elsewhere."""
        ...

    @property
    def coordinator(self) -> str | None:
        """The address of the coordinator, if one is known."""
        ...


class Executor(Protocol):
    """Runs the user's program: gets every `ProgramEffect`, and answers with events."""

    def carry_out(self, effect: Effect) -> None:
        """Begin, go on, or copy the state."""
        ...

    def stop(self, reason: str) -> None:
        """End this incarnation."""
        ...
