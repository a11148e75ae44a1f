"""Recoveries: what died, how it was noticed, and how long each phase took. One line for people, one record for tools.

The phases are those of the design: detect (from the notice to the open round), gather, settle (fence, cut, publish),
restore (a process, and the checkpoint in it), replay, resume.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from lineage_stash.core import effects, events
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import PeerId
from lineage_stash.core.recovery import Coordinator, Phase
from lineage_stash.on_ray.process import split_address
from lineage_stash.on_ray.recovery_file import keep
from lineage_stash.on_ray.registry import Registry
from lineage_stash.on_ray.telling import tell
from lineage_stash.shell import Shell, address_of

ORPHANED = "it depends on lineage that nobody holds: more nodes failed at once than max_failures allows"
"""Why somebody who lives is rolled back."""

AMOUNTS = ("replayed_calls", "replayed_bytes", "restored_bytes")
"""What a new life says of the work that it took to catch up."""

PHASES = ("detect", "gather", "settle", "start", "restore", "replay")


def orphan_key(peer: PeerId) -> str:
    """Under which key of the control plane it says in which round a peer was rolled back, although it lived."""
    return f"orphans/{peer}"


class Recoveries:
    """Watches a coordinator's machine, and keeps the time."""

    def __init__(self, machine: Coordinator, shell: Shell, registry: Registry,
                 on_recovered: Callable[[dict[str, Any]], None]) -> None:  # fmt: skip
        self.registry = registry
        self.recovered = 0
        self.orphans = 0
        self.replay_rate = 0.0
        """Entries a second in the last recovery."""
        self._on_recovered = on_recovered
        self.deaths: dict[str, tuple[float, float, str]] = {}
        self.entered: dict[Phase, float] = {}
        self.settled: dict[str, dict[str, Any]] = {}
        self._machine = machine
        shell.handle = self._follow

    def note_death(self, address: str, reason: str) -> None:
        """Somebody was taken for dead."""
        self.deaths.setdefault(address, (time.monotonic(), time.time(), reason))

    def note_host(self, address: str, host: str) -> None:
        """Where a new life will be."""
        if address in self.settled:
            self.settled[address]["host"] = host

    def _follow(self, event: object) -> list[effects.Effect]:
        before, dead, decided = self._machine.phase, set(self._machine.dead), self._machine.history.round
        result = self._machine.handle(event)
        now = time.monotonic()
        if any(isinstance(effect, effects.ReportFault) for effect in result):
            self._note_orphans([peer for peer in self._machine.dead if peer not in dead])
        if self._machine.phase is not before:
            self.entered[self._machine.phase] = now
        for effect in result:
            if isinstance(effect, effects.StartIncarnation):
                self._note_settled(effect, now)
        if isinstance(event, events.Published) and self._machine.history.round > decided:
            self._note_decided(event.decision)
            self._note_away(event.decision)
        return result

    def _note_decided(self, decision: Decision) -> None:
        """A round is over: who begins again from there, and who does not."""
        again = [beginning.peer for beginning in decision.beginnings]
        said = [f"{' and '.join(again)} begin{'s' if len(again) == 1 else ''} again"] if again else []
        said += [f"{' and '.join(decision.gone)} will not be back"] if decision.gone else []
        if said:
            tell("round", f"round {decision.round} is decided: {', '.join(said)}", round=decision.round, peers=[*again],
                 gone=[*decision.gone])  # fmt: skip

    def _note_orphans(self, orphans: list[PeerId]) -> None:
        """More has failed at once than the bound: these join the dead, and a script among them is told why."""
        plane = self.registry.plane
        self.orphans += len(orphans)
        for peer in orphans:
            self.note_death(address_of(peer, self._machine.dead[peer]), ORPHANED)
            self.registry.ask(partial(plane.put, orphan_key(peer), str(self._machine.round).encode()))

    def _note_away(self, decision: Decision) -> None:
        """A script that can be resumed has died: that is its user's to know, and no failure of this system's."""
        for beginning in decision.beginnings:
            member = self._machine.members.get(beginning.peer)
            if member is not None and member.resumable:
                self.deaths.pop(address_of(member.peer, type(beginning.incarnation)(beginning.incarnation - 1)), None)
                tell("away", f"{member.peer} is away until its script is started again", peer=member.peer)

    def _note_settled(self, effect: effects.StartIncarnation, now: float) -> None:
        died = address_of(effect.peer, type(effect.incarnation)(effect.incarnation - 1))
        noticed, at, reason = self.deaths.pop(died, (now, time.time(), "it did not answer the round"))
        opened = max(noticed, self.entered.get(Phase.OPENING, noticed))
        fenced = max(opened, self.entered.get(Phase.FENCING, now))
        self.settled[address_of(effect.peer, effect.incarnation)] = {
            "round": self._machine.history.round,
            "peer": effect.peer, "incarnation": effect.incarnation, "noticed_at": at,
            "reason": reason, "host": "", "detect_ms": 1e3 * (opened - noticed), "gather_ms": 1e3 * (fenced - opened),
            "settle_ms": 1e3 * (now - fenced), "decided": now,
        }  # fmt: skip

    def note_recovered(self, said: dict[str, Any]) -> None:
        """A new life has caught up: tell people, and keep it on record."""
        address = said["recovered"]
        record = self.settled.pop(address, None)
        lived = split_address(address)
        if record is None or lived is None:
            return
        took = time.monotonic() - record.pop("decided")
        record["pid"] = said["pid"]
        record["replayed"] = said["replayed"]
        record |= {name: said[name] for name in AMOUNTS if name in said}
        record["start_ms"] = max(0.0, 1e3 * took - said["restore_ms"] - said["replay_ms"])
        record["restore_ms"] = said["restore_ms"]
        record["replay_ms"] = said["replay_ms"]
        record["total_ms"] = sum(record[f"{phase}_ms"] for phase in PHASES)
        tell("recovered", in_one_line(record), **record)
        self.recovered += 1
        self.replay_rate = 1e3 * record["replayed"] / max(record["replay_ms"], 1.0)
        self._on_recovered(record)
        self.registry.ask(partial(keep, self.registry.plane, record))


def in_one_line(record: dict[str, Any]) -> str:
    """A recovery, for people."""
    times = ", ".join(f"{phase} {record[f'{phase}_ms']:.0f}" for phase in PHASES)
    return (
        f"recovered {record['peer']} (life {record['incarnation']}) in {record['total_ms']:.0f} ms "
        f"after it was noticed ({record['reason']}): {times} ms; {record['replayed']} entries replayed in "
        f"{record['host']}, pid {record['pid']}"
    )
