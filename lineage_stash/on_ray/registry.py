"""The registry: who is there, where, and what was decided, in the control plane. Implements the `Membership` port.

Rules:
- Whatever may wait for the GCS runs in the registry's own thread; answers come back as posted actions. A request that
  fails is not answered: the machines ask again. What they ask at every tick is not asked while it is under way, or
  else a GCS that was away for a minute would find thousands of the same questions.
- A joiner registers, then reads the decisions, then the notes of open rounds; a coordinator writes its note, then reads
  the members: one of the two finds the other.
- A life of a peer is claimed once: two processes that were started for it cannot both live.
"""

import json
import threading
from collections.abc import Callable, Hashable
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from lineage_stash import codec
from lineage_stash.core.events import Decided, GatherAsked
from lineage_stash.core.history import Decision, History
from lineage_stash.core.ids import Epoch, Incarnation, Index, Member, NodeId, PeerId, Round
from lineage_stash.on_ray.control_plane import ControlPlane, ControlPlaneAway, ControlPlaneReplaced
from lineage_stash.on_ray.replica_sets import newest_set
from lineage_stash.on_ray.telling import log
from lineage_stash.ports import Dead
from lineage_stash.store.contract import ReplicaId, ReplicaSet

COORDINATOR = "coordinator"
REPLICAS = "replica-"
NOTES = "notes/"
"""How the keys begin of the notes about who is taken for dead in which round."""
RAY_SCHEME = "ray:"
"""How an address begins at which nobody listens: a Ray actor is called instead."""

UNANSWERED = (ControlPlaneAway, RayError, OSError, RuntimeError)
"""What asking the control plane, or Ray itself, raises while it is away."""

CLOSE_S = 5.0
"""How long to wait for a request that is under way; without a GCS it may take longer, and is left alone."""


def replica_name(replica: ReplicaId) -> str:
    """The address of a replica, and the name of its Ray actor."""
    return f"{REPLICAS}{replica}"


class Place(NamedTuple):
    """Where a process listens, or who takes in what is sent to it."""

    node: str
    unix: str
    tcp: str
    pid: int
    actor: str = ""
    """The name of the Ray actor that takes in what is sent to it; empty for a driver that listens itself."""

    def address_from(self, node: str) -> str:
        """How a process on `node` reaches it."""
        if not self.unix:
            return f"{RAY_SCHEME}{self.actor}"
        return self.unix if node == self.node or not self.tcp else self.tcp


class Registry:
    """Facts about peers, by key: `members/`, `retired/`, `killed/`, `places/`, `claims/`, `decisions/`, `notes/`."""

    def __init__(self, plane: ControlPlane, post: Callable[[Callable[[], None]], None], token: str) -> None:
        self.plane = plane
        self.token = token
        self._post = post
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._under_way: set[Hashable] = set()
        self._notes = 0
        self._opening: tuple[Round, Dead] | None = None
        self._closed = False
        self.starter: Callable[[PeerId, Incarnation, NodeId], None] | None = None
        self.before_retiring: Callable[[], None] | None = None
        self.on_replaced: Callable[[str], None] | None = None
        self._thread = threading.Thread(target=self._run, name="stash registry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; what it has not begun is not done, because the cluster may be another one by then."""
        self._closed = True
        self.plane.patience_s = 0.0
        self._work.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def ask(self, action: Callable[[], Any], then: Callable[[Any], None] | None = None,
            otherwise: Callable[[], None] | None = None) -> None:  # fmt: skip
        """Do something with the control plane in the registry's thread, and post the answer, or that there is none."""

        def work() -> None:
            try:
                answer = action()
            except UNANSWERED:
                if otherwise is not None:
                    self._post(otherwise)
                raise
            if then is not None:
                self._post(lambda: then(answer))

        self._work.put(work)

    def ask_once(self, question: Hashable, action: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Ask what the machines ask at every tick, unless the same question is under way."""
        if question in self._under_way:
            return
        self._under_way.add(question)

        def answer() -> Any:
            try:
                return action()
            finally:
                self._under_way.discard(question)

        self.ask(answer, then)

    def _run(self) -> None:
        while (work := self._work.get()) is not None and not self._closed:
            try:
                work()
            except UNANSWERED as error:
                log.debug("the control plane did not answer: %s", error)
                if isinstance(error, ControlPlaneReplaced) and self.on_replaced is not None:
                    self._post(partial(self.on_replaced, str(error)))

    # joining

    def claim(self, address: str) -> bool:
        """Whether this process, and no other one, may live at an address."""
        return self.plane.put_if_absent(f"claims/{address}", self.token.encode()) == self.token.encode()

    def is_claimed(self, address: str) -> bool:
        """Whether some process lives, or has lived, at an address."""
        return self.plane.get(f"claims/{address}") is not None

    def register(self, member: Member) -> tuple[History, Dead]:
        """Put a peer on record; what was decided so far, and who is taken for dead in rounds that are open."""
        self.plane.put(f"members/{member.peer}", json.dumps(member[1:]).encode())
        history = self.read_history()
        open_notes = [key for key in self.plane.keys(NOTES) if key > f"{NOTES}{history.round + 1:08d}"]
        notes = [codec.decode(value) for value in self.plane.get_these(open_notes).values()]
        return history, tuple(pair for note in notes for pair in note.dead)

    def read_history(self) -> History:
        """All decisions so far."""
        values = self.plane.get_all("decisions/").values()
        return History(tuple(codec.decode(value).decision for value in values))

    def settle_in(self, address: str, place: Place) -> None:
        """Let others know where a process listens."""
        self.plane.put(f"places/{address}", json.dumps(place).encode())

    def place_of(self, address: str) -> Place | None:
        """Where a process listens; None if it has not come up."""
        found = self.plane.get(f"places/{address}")
        return None if found is None else Place(*json.loads(found))

    def addresses_on(self, node: str) -> list[str]:
        """The lives that have settled on a node, except of peers that have retired; former ones too."""
        retired = {key.removeprefix("retired/") for key in self.plane.keys("retired/")}
        places = {key.removeprefix("places/"): Place(*json.loads(value))
                  for key, value in self.plane.get_all("places/").items()}  # fmt: skip
        return [address for address, place in places.items()
                if place.node == node and "@" in address and address.rpartition("@")[0] not in retired]  # fmt: skip

    def coordinator_address(self) -> str | None:
        """Under which address the present coordinator goes."""
        found = self.plane.get(COORDINATOR)
        return None if found is None else found.decode()

    # killing

    def note_killed(self, peer: PeerId, last_words: bytes) -> None:
        """A peer is not wanted any more: whichever life of it reads this leaves its record and goes."""
        self.plane.put_if_absent(f"killed/{peer}", last_words)

    def last_words_of(self, peer: PeerId) -> bytes | None:
        """What is to be said in the name of a peer that was killed."""
        return self.plane.get(f"killed/{peer}")

    # Membership

    def open_round(self, round_: Round, dead: Dead, then: Callable[[tuple[Member, ...]], None]) -> None:
        """Note who is taken for dead, then see who is there."""
        self._notes += 1
        self._opening = (round_, dead)
        key = f"{NOTES}{round_:08d}/{self.token}-{self._notes}"
        note = codec.encode(GatherAsked(round_, dead, self.token))

        def action() -> tuple[Member, ...] | None:
            if self._opening != (round_, dead):
                return None  # asked again meanwhile, because more are dead: all of a node, one after the other
            self.plane.put(key, note)
            return self.read_members()

        self.ask_once(("open", round_, dead), action, lambda members: None if members is None else then(members))

    def read_members(self) -> tuple[Member, ...]:
        """Who is registered and has not retired."""
        retired = {key.removeprefix("retired/") for key in self.plane.keys("retired/")}
        found = self.plane.get_all("members/")
        members = []
        for key, value in found.items():
            peer = key.removeprefix("members/")
            if peer not in retired:
                members.append(Member(PeerId(peer), *json.loads(value)))
        return tuple(members)

    def begun_life(self, peer: PeerId) -> Incarnation | None:
        """Which life of a script that can be resumed was begun last; none of anybody else."""
        found = self.plane.get(f"members/{peer}")
        return None if found is None else Member(peer, *json.loads(found)).begun

    def has_finished(self, peer: PeerId) -> bool:
        """Whether a peer has retired; who asks waits for the answer."""
        return self.plane.get(f"retired/{peer}") is not None

    def publish(self, decision: Decision, then: Callable[[Decision], None]) -> None:
        """Put a decision into its slot unless one is there."""
        value = codec.encode(Decided(decision))
        key = f"decisions/{decision.round:08d}"
        self.ask_once((key, value), lambda: codec.decode(self.plane.put_if_absent(key, value)).decision, then)

    def fetch_decisions(self, after: int, then: Callable[[tuple[Decision, ...]], None]) -> None:
        """What was decided since."""

        def action() -> tuple[Decision, ...]:
            found: list[Decision] = []
            while (value := self.plane.get(f"decisions/{after + 1 + len(found):08d}")) is not None:
                found.append(codec.decode(value).decision)
            return tuple(found)

        self.ask_once(("decisions", after), action, then)

    def present_set(self) -> ReplicaSet:
        """Who the store is."""
        found = newest_set(self.plane)
        if found is None:
            raise LookupError("this cluster has no store yet: call init() in a driver first")
        return found

    def fetch_set(self, after: Epoch, then: Callable[[ReplicaSet], None]) -> None:
        """The newest replica set, if it is newer."""

        def on_found(newest: ReplicaSet | None) -> None:
            if newest is not None and newest.epoch > after:
                then(newest)

        self.ask_once(("set", after), lambda: newest_set(self.plane), on_found)

    def has_retired(self, peer: PeerId, then: Callable[[bool], None]) -> None:
        """Whether a peer has left for good."""
        key = f"retired/{peer}"
        self.ask_once(key, lambda: self.plane.get(key) is not None, then)

    def retire(self, peer: PeerId) -> None:
        """Note that a peer has left; done when this returns, because the process may end next."""
        if self.before_retiring is not None:
            self.before_retiring()
        self.plane.put(f"retired/{peer}", b"1")

    def start_incarnation(self, peer: PeerId, incarnation: Incarnation, index: Index, node: NodeId) -> None:
        """Start a process for a new life of a peer."""
        assert index >= 0
        assert self.starter is not None, "only a coordinator starts processes"
        self.starter(peer, incarnation, node)

    @property
    def coordinator(self) -> str | None:
        """The coordinator is always reached by its well-known name; the links find out which process that is."""
        return COORDINATOR


def own_node() -> NodeId:
    """The node of this process."""
    return NodeId(ray.get_runtime_context().get_node_id())
