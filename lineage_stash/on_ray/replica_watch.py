"""The replica watch: part of the coordinator, which sees to it that the store has its replicas.

A replica whose node is gone, or that has lost what it confirmed, is replaced; nodes that come later get a replica where
there are too few. It holds nothing that matters: a coordinator that was restarted looks again, and finishes what its
predecessor began.

Rules:
- A succession to a set that has lost its majority meanwhile is given up for another one.
- A node counts as gone when Ray says so, or some seconds after it was lost to the node watch: longer than it takes to
  recover actors, because nobody waits for a replica, and one that is back after a pause need not be copied.
- A set that replicas say is over, without a next one for some seconds, was sealed by somebody who did not finish: it is
  succeeded by itself.
"""

from contextlib import suppress
from typing import NamedTuple

import ray

from lineage_stash import codec
from lineage_stash.core.ids import Epoch, PeerId
from lineage_stash.on_ray.creation import ASKED_AGAIN, RAY_NAMESPACE
from lineage_stash.on_ray.node_watch import NodeWatch
from lineage_stash.on_ray.process import Process
from lineage_stash.on_ray.registry import Registry, replica_name
from lineage_stash.on_ray.replica_sets import (
    ANYWHERE,
    Residence,
    claim_replica,
    lost_replicas,
    newest_set,
    publish_set,
    residences,
)
from lineage_stash.on_ray.services import alive_nodes, settle_storage, start_replica
from lineage_stash.on_ray.telling import tell, warn
from lineage_stash.store.contract import GetCheckpoint, ReplicaId, ReplicaSet, Reply
from lineage_stash.store.placement import Plan, plan_next
from lineage_stash.store.succession import Phase, Succession

NOBODY = PeerId("")
LEFT_SEALED_LOOKS = 3
"""How often in a row a sealed set is seen before it is taken for one that somebody has left so."""

LOOK_S = 1.0
"""How often to look at the nodes: no call waits for a replica that is replaced."""

AWAY_LOOKS = 3
"""How many looks in a row a question may stay without an answer before people are told."""

GONE_S = 5.0
"""How long a node is lost before its replica is replaced."""


class Finding(NamedTuple):
    """What the registry and Ray say."""

    current: ReplicaSet
    residences: dict[ReplicaId, Residence]
    lost: dict[ReplicaId, str]
    alive: tuple[str, ...]


class ReplicaWatch:
    """Looks, plans, starts replicas, and runs successions, one at a time."""

    def __init__(self, process: Process, option: int | None, nodes: NodeWatch) -> None:
        self.process = process
        self.nodes = nodes
        self._starts = Registry(process.plane, process.loop.post, process.token)
        """With a thread of its own: rounds do not wait until a replica has started."""
        self.option = option
        self.succession: Succession | None = None
        self._attempts = 0
        self._told = ""
        self._probing = False
        self.unanswered_looks = 0
        """For how many looks the store has not answered."""
        self._turned_away = 0
        """How often in a row the replicas were found to serve this epoch no more."""
        self._starting = False

    def begin(self) -> None:
        """Look now, and from time to time."""
        self.process.on_reply = self._on_reply
        self._look()

    def _look(self) -> None:
        self.process.registry.ask(self._find, self._on_found, self._look_later)

    def _look_later(self) -> None:
        self.process.loop.later(LOOK_S, self._look)

    def on_ticked(self) -> None:
        """Some time has passed."""
        if self.succession is not None:
            self.succession.on_ticked()

    def _on_reply(self, number: int, reply: Reply) -> bool:
        return self.succession is not None and self.succession.on_reply(number, reply)

    # looking, in the registry's thread

    def _find(self) -> Finding | None:
        plane = self.process.plane
        current = newest_set(plane)
        if current is None:
            return None
        return Finding(current, residences(plane), lost_replicas(plane), alive_nodes())

    def _start(self, found: Finding, plan: Plan) -> ReplicaSet:
        """Have replicas on the nodes of the plan, those of an earlier attempt first, and wait until they are up."""
        plane = self.process.plane
        folder = settle_storage(plane, None)
        newest = max(found.current.replicas)
        unused = [
            replica for replica, home in found.residences.items()
            if replica > newest and replica not in found.lost and home.node != ANYWHERE
        ]  # fmt: skip
        joining: list[ReplicaId] = []
        for node in plan.nodes:
            replica = next((other for other in unused if found.residences[other].node == node), None)
            if replica is None:
                replica = max(residences(plane)) + 1
                home = claim_replica(plane, replica, Residence(node, str(folder / replica_name(replica))))
            else:
                unused.remove(replica)
                home = found.residences[replica]
            joining.append(replica)
            ray.get(start_replica(replica, home).address.options(**ASKED_AGAIN).remote(), timeout=60)
        return ReplicaSet(Epoch(found.current.epoch + 1), (*plan.staying, *joining), found.current.archive)

    # acting

    def _on_found(self, found: Finding | None) -> None:
        self._look_later()
        if found is None:
            return
        found = found._replace(alive=tuple(node for node in found.alive if not self.nodes.is_gone(node, GONE_S)))
        assert self.process.store is not None
        self.process.store.on_set(found.current)
        self._probe()
        if self._is_succeeding(found) or self._starting:
            return
        present = {replica: found.residences[replica].node for replica in found.current.replicas}
        out = {replica: found.lost[replica] for replica in present if replica in found.lost}
        out |= {replica: "its node is gone" for replica, node in present.items() if node not in found.alive}
        plan = plan_next(present, tuple(found.lost), found.alive, self.option)
        self._tell(out, plan, len(present))
        if plan is not None:
            self._starting = True
            self._starts.ask(
                lambda: self._start(found, plan), lambda successor: self._succeed(found.current, successor),
                self._on_not_started,
            )  # fmt: skip
        elif self._turned_away >= LEFT_SEALED_LOOKS:
            self._succeed(found.current, found.current._replace(epoch=Epoch(found.current.epoch + 1)))

    def _on_not_started(self) -> None:
        self._starting = False

    def _probe(self) -> None:
        """See whether the replicas serve the present epoch, with a question that changes nothing."""
        store = self.process.store
        assert store is not None
        self._turned_away = self._turned_away + 1 if store.is_turned_away else 0
        if not self._probing:
            self._probing = True
            store.request(GetCheckpoint(NOBODY), self._on_probed)
            return
        self.unanswered_looks += 1
        if self.unanswered_looks == AWAY_LOOKS:
            up, count = len(self.replicas_up), len(store.set.replicas)
            warn("store away", f"store: it does not answer; {up} of {count} replicas are connected, {store.majority} "
                 "are needed. Programs go on until their stashes are full; nothing is committed or recovered so far.",
                 replicas_up=up)  # fmt: skip

    def _on_probed(self, _: tuple[Reply, ...]) -> None:
        self._probing = False
        if self.unanswered_looks >= AWAY_LOOKS:
            tell("store back", f"store: it answers again, after {self.unanswered_looks * LOOK_S:.0f} s.",
                 away_s=self.unanswered_looks * LOOK_S)  # fmt: skip
        self.unanswered_looks = 0

    @property
    def replicas_up(self) -> list[ReplicaId]:
        """Those of the present set to which there is a link."""
        store = self.process.store
        assert store is not None
        return [replica for replica in store.set.replicas if replica_name(replica) in self.process.links.open]

    def _is_succeeding(self, found: Finding) -> bool:
        """Whether a set is on its way that follows the current one, and that has not lost its majority already."""
        out = [*found.lost, *[replica for replica, home in found.residences.items() if home.node not in found.alive]]
        return self.succession is not None and self.succession.is_on_its_way(found.current, out)

    def _tell(self, out: dict[ReplicaId, str], plan: Plan | None, count: int) -> None:
        """Say once what is wrong, and what is done about it."""
        if not out:
            self._told = ""
            return
        what = "; ".join(f"{replica_name(replica)} is lost: {reason}" for replica, reason in out.items())
        if len(out) > count // 2:
            what += ". That is a majority: nothing can be committed or recovered until some are back"
        elif plan is None:
            what += ". No node is free to take its place: the promise is lower until one is"
        else:
            what += f". Another one takes its place on node {', '.join(plan.nodes)}"
        if what != self._told:
            self._told = what
            warn("replica lost", f"store: {what}.", replicas=[replica_name(replica) for replica in out])

    def _succeed(self, current: ReplicaSet, successor: ReplicaSet) -> None:
        self._starting = False
        self._turned_away = 0
        self._attempts += 1
        self.succession = Succession(current, successor, codec.encode_in_pieces, self.process.links.ask_replica,
                                     self._publish, self._attempts)  # fmt: skip
        self.succession.begin()

    def _publish(self, successor: ReplicaSet) -> None:
        succession = self.succession
        assert succession is not None

        def on_published(standing: ReplicaSet) -> None:
            if succession.phase is Phase.OVER:
                return
            succession.on_published(standing)
            assert self.process.store is not None
            self.process.store.on_set(standing)
            self._dismiss([replica for replica in succession.current.replicas if replica not in standing.replicas])
            names = [replica_name(replica) for replica in standing.replicas]
            tell("epoch", f"store: epoch {standing.epoch} begins with replicas {', '.join(names)}; "
                 f"{succession.copied_bytes} bytes were copied.", epoch=standing.epoch, replicas=names,
                 copied_bytes=succession.copied_bytes)  # fmt: skip

        self.process.registry.ask(lambda: publish_set(self.process.plane, successor), on_published)

    def _dismiss(self, replicas: list[ReplicaId]) -> None:
        """End the processes of those who are out; Ray would restart them for ever."""
        for replica in replicas:
            if replica_name(replica) in self.process.links.open:
                self.process.control(replica_name(replica), retire=True)
            self.process.registry.ask(lambda replica=replica: self._end(replica))  # type: ignore[misc]

    def _end(self, replica: ReplicaId) -> None:
        with suppress(ValueError):  # it has ended by itself, or its node has
            ray.kill(ray.get_actor(replica_name(replica), namespace=RAY_NAMESPACE))
        self.process.plane.delete(f"places/{replica_name(replica)}")
