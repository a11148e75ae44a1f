"""A control plane in memory, and the records that the processes of a cluster would write into it."""

import json
from typing import Any

from lineage_stash import codec
from lineage_stash.core.events import Decided, GatherAsked
from lineage_stash.core.history import Beginning, Decision
from lineage_stash.core.ids import Incarnation, Index, PeerId, Round
from lineage_stash.on_ray.creation import Creation
from lineage_stash.on_ray.registry import COORDINATOR, REPLICA, Place

NODE = "0123456789abcdef"


class MemoryPlane:
    """What the commands read of a control plane."""

    def __init__(self) -> None:
        self.facts: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.facts.get(key)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.facts if key.startswith(prefix))

    def get_all(self, prefix: str) -> dict[str, bytes]:
        return {key: self.facts[key] for key in self.keys(prefix)}

    # what processes write

    def add_services(self) -> None:
        self.facts["secret"] = b"s" * 32
        self.facts[COORDINATOR] = b"coordinator-1"
        self.settle_in("coordinator-1", pid=10)
        self.settle_in(REPLICA, pid=11)

    def settle_in(self, address: str, pid: int, folder: str = "/nowhere") -> None:
        place = Place(NODE, f"unix:{folder}/{pid}-token.sock", f"tcp:192.0.2.7:{pid}", pid)
        self.facts[f"places/{address}"] = json.dumps(place).encode()

    def add_driver(self, peer: str) -> None:
        self.facts[f"members/{peer}"] = json.dumps([NODE, False]).encode()
        self.settle_in(f"{peer}@0", pid=100)

    def create(self, peer: str, class_name: str = "Counter") -> None:
        creation = Creation(peer, peer.partition("/")[0], class_name, "digest", False, None, 3, "")
        self.facts[f"actors/{peer}"] = json.dumps(creation).encode()

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
