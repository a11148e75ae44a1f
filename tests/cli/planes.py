"""A control plane in memory, and the records that the processes of a cluster would write into it."""

import json
from collections.abc import Iterable
from typing import Any

from lineage_stash import codec
from lineage_stash.cli.cluster import Cluster
from lineage_stash.core.events import Decided, GatherAsked
from lineage_stash.core.history import Beginning, Decision
from lineage_stash.core.ids import Epoch, Incarnation, Index, NodeId, PeerId, Round
from lineage_stash.on_ray.creation import Creation
from lineage_stash.on_ray.registry import COORDINATOR, Place, replica_name
from lineage_stash.on_ray.replica_sets import Residence
from lineage_stash.store.contract import ReplicaSet

NODE = "0123456789abcdef"
OTHER_NODES = ("1123456789abcdef", "2123456789abcdef")
NODES = (NODE, *OTHER_NODES)
ALIVE = frozenset(NODES)
STORE = "store-1"


class MemoryPlane:
    """What the commands read and write of a control plane."""

    def __init__(self) -> None:
        self.facts: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.facts.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.facts[key] = value

    def delete(self, key: str) -> None:
        self.facts.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.facts if key.startswith(prefix))

    def get_all(self, prefix: str) -> dict[str, bytes]:
        return {key: self.facts[key] for key in self.keys(prefix)}

    # what processes write

    def add_services(self, nodes: tuple[str, ...] = (NODE,), folder: str = "/nowhere") -> None:
        self.facts["secret"] = b"s" * 32
        self.facts["store"] = STORE.encode()
        self.facts["durability"] = b"disk"
        self.facts[COORDINATOR] = b"coordinator-1"
        self.settle_in("coordinator-1", pid=10)
        for replica, node in enumerate(nodes):
            self.add_replica(replica, node, folder)
        self.begin_epoch(1, range(len(nodes)))

    def add_replica(self, replica: int, node: str, folder: str = "/nowhere") -> None:
        home = Residence(node, f"{folder}/{replica_name(replica)}")
        self.facts[f"replicas/{replica}"] = json.dumps(home).encode()
        self.settle_in(replica_name(replica), pid=11 + replica, node=node)

    def begin_epoch(self, epoch: int, replicas: Iterable[int], archive: int | None = None) -> None:
        self.facts[f"epochs/{epoch:08d}"] = json.dumps(ReplicaSet(Epoch(epoch), tuple(replicas), archive)).encode()

    def settle_in(self, address: str, pid: int, folder: str = "/nowhere", node: str = NODE) -> None:
        host = "192.0.2.7" if node == NODE else "127.0.0.1"  # where nobody listens, and that is known at once
        place = Place(node, f"unix:{folder}/{pid}-token.sock", f"tcp:{host}:{pid}", pid)
        self.facts[f"places/{address}"] = json.dumps(place).encode()

    def listen(self, address: str, where: str) -> None:
        """Somebody listens there for real."""
        self.facts[f"places/{address}"] = json.dumps(Place(NODE, where, "", 1)).encode()

    def add_driver(self, peer: str) -> None:
        self.facts[f"members/{peer}"] = json.dumps([NODE, False]).encode()
        self.settle_in(f"{peer}@0", pid=100)

    def begin_run(self, run: str, **said: Any) -> None:
        self.add_driver(run)
        noted = {"started_at": 1000.0, "entrypoint": "job.py", "user": "ann", "pid": 100, "node": NODE, **said}
        self.facts[f"runs/{run}"] = json.dumps(noted).encode()

    def end_run(self, run: str, at: float = 2000.0) -> None:
        self.retire(run)
        noted = {**json.loads(self.facts[f"runs/{run}"]), "ended_at": at}
        self.facts[f"runs/{run}"] = json.dumps(noted).encode()

    def retire(self, peer: str) -> None:
        self.facts[f"retired/{peer}"] = b"1"

    def create(self, peer: str, class_name: str = "Counter", *, detached: bool = False, name: str = "") -> None:
        creation = Creation(
            peer=peer, creator=peer.rpartition("/")[0], class_name=class_name, class_digest="digest",
            detached=detached, checkpoint_every=None, max_crashes=3, durability="", placement="",
        )  # fmt: skip
        self.facts[f"actors/{peer}"] = json.dumps(creation).encode()
        if name:
            self.facts[f"names/default/{name}"] = json.dumps([peer, class_name, []]).encode()

    def live(self, peer: str, life: int, pid: int) -> None:
        self.facts[f"members/{peer}"] = json.dumps([NODE, True]).encode()
        self.facts[f"claims/{peer}@{life}"] = b"token"
        self.settle_in(f"{peer}@{life}", pid)

    def decide(self, round_: int, *beginnings: tuple[str, int], gone: tuple[str, ...] = ()) -> None:
        begun = tuple(Beginning(PeerId(peer), Incarnation(life), Index(5)) for peer, life in beginnings)
        decision = Decision(Round(round_), begun, tuple(map(PeerId, gone)), "coordinator-1")
        self.facts[f"decisions/{round_:08d}"] = codec.encode(Decided(decision))

    def open_round(self, round_: int, *dead: tuple[str, int]) -> None:
        pairs = tuple((PeerId(peer), Incarnation(life)) for peer, life in dead)
        self.facts[f"notes/{round_:08d}/token-1"] = codec.encode(GatherAsked(Round(round_), pairs, "token"))

    def recover(self, peer: str, life: int, round_: int, **said: Any) -> None:
        record = {"round": round_, "peer": peer, "incarnation": life, **said}
        self.facts[f"recoveries/{round_:08d}/{peer}"] = json.dumps(record).encode()


def cluster_of(plane: MemoryPlane, session: str = "/nowhere/session_1", alive: frozenset[str] = ALIVE) -> Cluster:
    """A cluster as if it had been joined."""
    return Cluster("192.0.2.7:6379", NodeId(NODE), plane, 1.0, alive, session, "memory")
