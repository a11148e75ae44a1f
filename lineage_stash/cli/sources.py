"""Where logs are read from: the replicas of a running cluster, or the files that a store has left on a disk.

Both give the same: what there is of a peer (`item`), its log in pages of spans whose bodies are decoded by whoever
needs them, and payloads of calls as far as anybody still has them. Nothing is changed, and no log is read whole.

Rules:
- Of several replicas the one that knows most of a log is read: the newest incarnations first, then the longest log.
- What keeps us from an answer is a `NotFound` with one line.
- A replica whose files are damaged is left out, with a note, while there is another one.
"""

import json
import os
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lineage_stash.cli import folders
from lineage_stash.cli.asking import ANSWER_WITHIN_S, NoAnswer, ask, ask_replica, of_each, read_pages
from lineage_stash.cli.records import Records
from lineage_stash.cli.status import fault_of
from lineage_stash.core.checkpoint import Checkpoint, age
from lineage_stash.core.history import Segments
from lineage_stash.core.ids import Index, PeerId
from lineage_stash.on_ray import answers
from lineage_stash.on_ray.control_plane import ControlPlane
from lineage_stash.on_ray.functions import read_function
from lineage_stash.on_ray.links import Kind
from lineage_stash.on_ray.registry import REPLICAS
from lineage_stash.store.contract import Chunks, GetChunks, Inventory, Item, List, ReplicaId, Span
from lineage_stash.store.faults import BodyDamaged, StoreError
from lineage_stash.store.looking import FolderView, is_one
from lineage_stash.store.replica import NO_EPOCH

HIGHEST = chr(0x10FFFF)
FEW = 5

SOON_S = 1.0
"""How long to wait for replicas while others have answered: one that is silent is not waited for any longer."""


class NotFound(Exception):
    """Why there is no answer, in one line."""


class Source(ABC):
    """Logs, checkpoints and payloads of one cluster."""

    where: str
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    @abstractmethod
    def peers(self) -> list[PeerId]:
        """Everyone of whom there may be something."""

    @abstractmethod
    def item(self, peer: PeerId) -> Item | None:
        """What there is of a peer; None if there is nothing."""

    @abstractmethod
    def pages(self, peer: PeerId, lower: Index) -> Iterator[Sequence[Span]]:
        """The log of a peer from an index on, a page at a time."""

    @abstractmethod
    def chunks(self, peer: PeerId, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Parts of a state, as far as they are there."""

    def segments(self, item: Item) -> Segments:
        """Which incarnation of a peer began where in its log."""
        return item.segments

    def calls(self, caller: PeerId, callee: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """The payloads of calls `[lower, upper)` that are not in the callee's log, as far as somebody has them."""
        item = self.item(caller)
        return {} if item is None else _calls_in(item.checkpoints, callee, lower, upper)

    def replies(self, callee: PeerId, caller: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """The replies to calls `[lower, upper)`, as far as somebody has them."""
        found: dict[int, bytes] = {}
        for item, other in ((self.item(callee), caller), (self.item(caller), callee)):
            for checkpoint in () if item is None else item.checkpoints:
                found |= _replies_in(checkpoint, other, item is not None and item.peer == callee)
        return {seqno: reply for seqno, reply in found.items() if lower <= seqno < upper}

    def parcels(self, giver: PeerId, receiver: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """The values `[lower, upper)` that somebody has passed on, as far as they are in a checkpoint or a record."""
        item = self.item(giver)
        kept = [parcels.filled for made in (() if item is None else item.checkpoints)
                for whom, parcels in made.parcels_to if whom == receiver]  # fmt: skip
        return {one.number: one.value for filled in kept for one in filled if lower <= one.number < upper}

    def fact(self, key: str) -> bytes | None:
        """What the control plane has under a key; None where there is none."""
        assert key
        return None

    def function_name(self, digest: str) -> str:
        """The name of a remote function."""
        return f"function {digest[:8]}"

    def class_digest(self, peer: PeerId) -> str:
        """By which digest the class of an actor is known; empty where it is not on record."""
        assert peer
        return ""

    def named(self, name: str) -> PeerId | None:
        """Whom a name of an actor stands for."""
        assert name
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    def resolve(self, name: str) -> PeerId:
        """Who is meant: by id, by the last part of an id, or by the name of an actor."""
        known = self.peers()
        if PeerId(name) in known:
            return PeerId(name)
        named = self.named(name)
        if named is not None:
            return named
        found = [peer for peer in known if peer.rpartition("/")[2] == name or peer.endswith(f"/{name}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise NotFound(f"{name} may be any of {', '.join(found[:FEW])}: give the whole id")
        there = f": there are {', '.join(known[:FEW])}{', ...' if len(known) > FEW else ''}" if known else ""
        raise NotFound(f"there is no peer {name} in {self.where}{there}")


def best(items: Iterable[Item]) -> Item | None:
    """What the replica says that knows most."""
    return max(items, key=lambda item: (item.segments[-1][0], item.upper, item.base), default=None)


def _calls_in(checkpoints: Iterable[Checkpoint], callee: PeerId, lower: int, upper: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for checkpoint in checkpoints:
        for called, calls in checkpoint.calls_to:
            if called == callee:
                kept = enumerate(calls.payloads, calls.floor)
                found |= {seqno: payload for seqno, payload in kept if lower <= seqno < upper}
    return found


def _replies_in(checkpoint: Checkpoint, other: PeerId, of_callee: bool) -> dict[int, bytes]:
    if of_callee:
        kept = [calls for caller, calls in checkpoint.calls_from if caller == other]
        return {seqno: reply for calls in kept for seqno, reply in enumerate(calls.replies, calls.released)}
    return {seqno: reply for callee, calls in checkpoint.calls_to if callee == other for seqno, reply in calls.results}


# a running cluster


class ClusterSource(Source):
    """The replicas of a cluster, and its live peers where they have what the store has not."""

    def __init__(self, records: Records, plane: ControlPlane, own_node: str, alive_nodes: frozenset[str]) -> None:
        self.records = records
        self.where = "the cluster"
        self._plane = plane
        self._own_node = own_node
        self._addresses = {replica: address for replica in records.replicas
                           if (address := self._address(replica, alive_nodes))}  # fmt: skip
        self._items: dict[PeerId, tuple[Item | None, ReplicaId]] = {}
        if not self._addresses:
            raise NotFound("no replica of the store can be asked: see stash status, or give --storage FOLDER")

    def _address(self, replica: ReplicaId, alive_nodes: frozenset[str]) -> str:
        place = self.records.place_of_replica(replica)
        if place is None or fault_of(self.records, replica, alive_nodes):
            return ""
        return place.address_from(self._own_node)

    @property
    def _secret(self) -> bytes:
        assert self.records.secret is not None, "replicas without a secret are not asked"
        return self.records.secret

    def close(self) -> None:
        """There is nothing to let go of: every question is a connection of its own."""

    def peers(self) -> list[PeerId]:
        """Everyone on record."""
        return self.records.peers

    def item(self, peer: PeerId) -> Item | None:
        """What the replica has that knows most of a peer."""
        return self._look(peer)[0]

    def _look(self, peer: PeerId) -> tuple[Item | None, ReplicaId]:
        if peer not in self._items:
            answers = self._ask_all(peer, SOON_S) or self._ask_all(peer, ANSWER_WITHIN_S)
            if not answers:
                raise NotFound("no replica of the store answers: see stash status, or give --storage FOLDER")
            found = best(item for item in answers.values() if item is not None)
            source = next((replica for replica, item in answers.items() if item is found), 0)
            self._items[peer] = found, source
        return self._items[peer]

    def _ask_all(self, peer: PeerId, within_s: float) -> dict[ReplicaId, Item | None]:
        """What each replica has of a peer; without those that do not answer in time."""
        said = of_each(tuple(self._addresses), lambda replica: self._ask_item(replica, peer, within_s))
        return {replica: item for replica, item in said.items() if not isinstance(item, NoAnswer)}

    def _ask_item(self, replica: ReplicaId, peer: PeerId, within_s: float) -> Item | NoAnswer | None:
        try:
            reply, _ = ask_replica(
                self._addresses[replica], self._secret, List(just_before(peer)), within_s=within_s
            )  # fmt: skip
        except NoAnswer as error:
            return error
        items = reply.items if isinstance(reply, Inventory) else ()
        return next((item for item in items if item.peer == peer), None)

    def pages(self, peer: PeerId, lower: Index) -> Iterator[Sequence[Span]]:
        """From the replica that knows most of this log."""
        item, source = self._look(peer)
        if item is None:
            return
        try:
            yield from read_pages(self._addresses[source], self._secret, peer, lower)
        except NoAnswer as error:
            raise NotFound(f"the log of {peer} cannot be read: {error}") from error

    def chunks(self, peer: PeerId, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """From the same replica, in as many answers as it takes."""
        found: dict[bytes, bytes] = {}
        _, source = self._look(peer)
        missing = list(digests)
        while missing:
            reply, _ = ask_replica(self._addresses[source], self._secret, GetChunks(peer, tuple(missing)))
            brought = reply.chunks if isinstance(reply, Chunks) else ()
            if not brought:
                break
            found |= {chunk.digest: bytes(chunk.body) for chunk in brought}
            missing = [digest for digest in missing if digest not in found]
        return found

    def segments(self, item: Item) -> Segments:
        """As it was decided: a replica may not have been told yet."""
        return self.records.history.segments(item.peer)

    def calls(self, caller: PeerId, callee: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """From the caller itself while it lives, else from its checkpoints or its record."""
        asked = self._ask_peer(caller, answers.CALLS, callee, lower, upper)
        return super().calls(caller, callee, lower, upper) | asked

    def replies(self, callee: PeerId, caller: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """From the callee itself while it lives, else from checkpoints or records."""
        asked = self._ask_peer(callee, answers.REPLIES, caller, lower, upper)
        return super().replies(callee, caller, lower, upper) | asked

    def _ask_peer(self, whom: PeerId, what: str, other: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        place = self.records.places.get(self.records.address(whom))
        found: dict[int, bytes] = {}
        while place is not None and lower < upper:
            said: dict[str, Any] = {answers.LOOK: what, "peer": other, "lower": lower, "upper": upper}
            try:
                body, _ = ask(place.address_from(self._own_node), self._secret, Kind.CONTROL, json.dumps(said).encode())
            except NoAnswer:
                break
            page = json.loads(body).get(what, [])
            found |= {seqno: b64decode(payload) for seqno, payload in page}
            lower = page[-1][0] + 1 if page else upper
        return found

    def function_name(self, digest: str) -> str:
        """As it is on record."""
        try:
            return read_function(self._plane, digest).name
        except LookupError:
            return super().function_name(digest)

    def parcels(self, giver: PeerId, receiver: PeerId, lower: int, upper: int) -> dict[int, bytes]:
        """From the giver itself while it lives, else from its checkpoints or its record."""
        asked = self._ask_peer(giver, answers.PARCELS, receiver, lower, upper)
        return super().parcels(giver, receiver, lower, upper) | asked

    def fact(self, key: str) -> bytes | None:
        """As it is now."""
        return self._plane.get(key)

    def class_digest(self, peer: PeerId) -> str:
        """As the actor was created."""
        creation = self.records.creations.get(peer)
        return "" if creation is None else creation.class_digest

    def named(self, name: str) -> PeerId | None:
        """Whom a name stands for, if it does in one namespace only."""
        found = {peer for key, peer in self.records.names.items() if key.split("/", 2)[2] == name}
        return next(iter(found)) if len(found) == 1 else None


def just_before(peer: PeerId) -> PeerId:
    """A name after which this one is the next, whoever else there is."""
    return PeerId(f"{peer[:-1]}{chr(ord(peer[-1]) - 1)}{HIGHEST}") if peer else peer


# files


class FolderSource(Source):
    """What the replicas of a store have left on this machine's disks."""

    def __init__(self, storages: Iterable[Path]) -> None:
        paths = find_replicas(storages)
        if not paths:
            raise NotFound(f"there is no store in {', '.join(map(str, storages))}: give a folder with replicas' files")
        self._views: list[FolderView] = []
        notes = []
        for path in paths:
            try:
                self._views.append(FolderView(path))
            except StoreError as error:
                notes.append(str(error).partition(". ")[0])
        if not self._views:
            raise NotFound(notes[0])
        self.where = ", ".join(str(view.path) for view in self._views)
        self.notes = tuple(notes)
        self._items: dict[PeerId, tuple[Item | None, FolderView]] = {}

    def close(self) -> None:
        """Let go of the files."""
        for view in self._views:
            view.close()

    def peers(self) -> list[PeerId]:
        """Everyone of whom a replica has something."""
        return sorted({peer for view in self._views for peer in view.replica.peers})

    def item(self, peer: PeerId) -> Item | None:
        """What the replica has that knows most of a peer."""
        return self._look(peer)[0]

    def _look(self, peer: PeerId) -> tuple[Item | None, FolderView]:
        if peer not in self._items:
            items = [(_item_in(view, peer), view) for view in self._views]
            found = best(item for item, _ in items if item is not None)
            self._items[peer] = found, next(view for item, view in items if item is found)
        return self._items[peer]

    def pages(self, peer: PeerId, lower: Index) -> Iterator[Sequence[Span]]:
        """All of it at once: the bodies stay in the files."""
        log = self._look(peer)[1].replica.logs.get(peer)
        if log is not None:
            yield log.read(lower)

    def chunks(self, peer: PeerId, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """From whichever replica has them."""
        found: dict[bytes, bytes] = {}
        for view in self._views:
            kept = view.replica.chunks.get(peer, {})
            for digest in digests:
                if digest in kept and digest not in found:
                    found[digest] = body_of(kept[digest].body)
        return found


def _item_in(view: FolderView, peer: PeerId) -> Item | None:
    reply = view.replica.handle(List(just_before(peer)), NO_EPOCH)
    items = reply.items if isinstance(reply, Inventory) else ()
    return next((item for item in items if item.peer == peer), None)


def find_replicas(storages: Iterable[Path]) -> list[Path]:
    """The replicas' folders in some folders, which may be one of these, a storage, or a session of Ray's."""
    found: dict[str, None] = {}
    for storage in storages:
        for root in (storage, storage / folders.STORE_FOLDER):
            for path in (root, *folders.folders_in(root, REPLICAS)):
                if is_one(path):
                    found[os.path.realpath(path)] = None
    return [Path(path) for path in found]


def body_of(body: Any) -> bytes:
    """A body as bytes, wherever it is; raises `NotFound` if it is damaged."""
    if isinstance(body, bytes | memoryview):
        return bytes(body)
    try:
        return bytes(body.read())
    except BodyDamaged as error:
        raise NotFound(str(error).partition(". ")[0]) from error


def newest(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """The newest of some checkpoints."""
    return max(checkpoints, key=age, default=None)
