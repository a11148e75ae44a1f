"""The checker: sees everything, trusts nothing. What it says of a world is the result of running it.

`ghosts.py` keeps what really happened, `following.py` compares every step of every machine with it, and here are the
events of the world around them: crashes, decisions, outputs, and the end. A broken rule raises `Violation`, with the
number of the invariant and the story of whoever is involved.
"""

from typing import TYPE_CHECKING

from lineage_stash.core.checkpoint import age
from lineage_stash.core.entry import Scripted, size_bytes
from lineage_stash.core.frontier import START
from lineage_stash.core.history import Decision
from lineage_stash.core.ids import Epoch, Index, PeerId
from lineage_stash.core.peer import Peer
from lineage_stash.store import contract
from lineage_stash.store.replica import NO_EPOCH
from lineage_stash.testing.following import Following
from lineage_stash.testing.ghosts import StrayNoticed, hash_of, is_whole
from lineage_stash.testing.stories import say

if TYPE_CHECKING:
    from lineage_stash.testing.process import Process
    from lineage_stash.testing.world import World


class Checker(Following):
    """The judge of one world."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.fenced: dict[tuple[int, PeerId], int] = {}
        self.sealed: dict[int, Epoch] = {}

    # the world around

    def after_start(self, process: "Process", peer: Peer) -> None:
        """A restored peer has exactly the log that survived."""
        followed = self.followed[process.address]
        followed.needs[peer.id] = peer.lineage.upper
        followed.progress[2] = peer.lineage.upper
        if peer.program.script:
            log = self.logs.get(peer.id, [])
            lower = peer.program.position
            survived = [ghost.entry for ghost in log[lower : peer.lineage.upper]]
            if [entry for entry in survived if isinstance(entry, Scripted)] != list(peer.program.script):
                self.fail("3 replay equality", f"{peer.id} restored another log than the one that survived", peer.id)
        restored = peer.durability.checkpoint_under_way
        if restored is not None:
            submitted = {callee: int(calls.next_seqno) for callee, calls in restored.calls_to}
            self.captured[(process.address, restored.upper)] = (hash_of(restored.state), submitted)

    def after_crash(self, process: "Process") -> None:
        """A node with a crashed process counts as failed until the next decision settles it."""
        self.story.tell(process.address, "is killed")
        if "@" in process.address:
            self._note_failed_node(process.node)

    def after_suspicion(self, process: "Process") -> None:
        """Being taken for dead counts as dying."""
        self.story.tell(process.address, "is taken for dead")
        self._note_failed_node(process.node)

    def after_stop(self, process: "Process", reason: str) -> None:
        """A process has ended itself."""
        self.story.tell(process.address, f"stops: {reason}")
        if reason != "retired":
            self._note_failed_node(process.node)

    def after_retirement(self, process: "Process") -> None:
        """A driver has left: all its calls have run."""
        self.story.tell(process.address, "retires")
        peer = process.peer
        for needed, upper in self.followed[process.address].needs.items():
            if not self.truly_durable(needed, upper):
                self.fail("8 forwarded enough", f"{peer.id} left with its copy of {needed} below {upper}", peer.id)
        for callee, counterpart in peer.counterparts.items():
            ran = sum(1 for call, _ in self.runs.get(callee, {}).values() if call.caller == peer.id)
            if ran < counterpart.outbox.calls.upper:
                self.fail(
                    "4 exactly once", f"{peer.id} left, but {callee} ran only {ran} of its calls", peer.id, callee
                )

    def after_request(self, asker: "Process", replica: int, epoch: Epoch, request: object, reply: object) -> None:
        """What replicas delete must be covered by a durable checkpoint; what is fenced or sealed must stay out."""
        if isinstance(reply, contract.Elsewhere):
            return
        if isinstance(request, contract.Seal):
            self.sealed[replica] = max(self.sealed.get(replica, NO_EPOCH), request.epoch)
        elif NO_EPOCH < epoch <= self.sealed.get(replica, NO_EPOCH):
            self.fail("19 epochs", f"replica {replica} took a {type(request).__name__} of epoch {epoch}, which is "
                      "sealed", asker.address)  # fmt: skip
        if isinstance(request, contract.Truncate):
            kept = self.newest_durable(request.peer)
            if kept is None or kept.upper < request.below:
                self.fail("8 truncated is committed", f"replica {replica} truncates {request.peer} below "
                          f"{request.below} without a durable checkpoint there", asker.address)  # fmt: skip
        if isinstance(request, contract.Fence):
            for peer, incarnation in request.dead:
                self.fenced[(replica, peer)] = max(self.fenced.get((replica, peer), incarnation), incarnation)
        if isinstance(request, contract.PutCheckpoint) and isinstance(reply, contract.Stored) and reply.stored:
            checkpoint = request.checkpoint
            if checkpoint.incarnation <= self.fenced.get((replica, checkpoint.peer), -1) and not request.copied:
                self.fail("13 zombies", f"replica {replica} took a checkpoint of {checkpoint.peer}@"
                          f"{checkpoint.incarnation} after fencing it", asker.address)  # fmt: skip
            if checkpoint.upper > len(self.logs.get(checkpoint.peer, ())):
                self.fail("13 zombies", f"replica {replica} took a checkpoint of {checkpoint.peer}@"
                          f"{checkpoint.incarnation} beyond its surviving log", asker.address)  # fmt: skip
            for kept in self.world.replicas[replica].checkpoints[checkpoint.peer]:
                if not is_whole(kept, self.world.replicas[replica]):
                    self.fail("12 deleted too early", f"replica {replica} keeps a checkpoint of {kept.peer} at "
                              f"{kept.upper} without its chunks", asker.address)  # fmt: skip

    def after_effect(self, process: "Process", number: int, value: bytes) -> None:
        """Acting again, because nobody knows any more that it has happened, is doing the same under the same key."""
        peer = process.peer
        needs = dict(self.followed[process.address].wanted)
        _, before = self.acted.setdefault((peer.id, number), (needs, value))
        if before != value:
            self.fail("3 replay equality", f"effect {number} of {peer.id} is not what it was before", peer.id)

    def after_output(self, process: "Process", peer: PeerId, number: int, value: bytes) -> None:
        """An output leaves once, always the same, and only when its past is committed."""
        before = self.outputs.get((peer, number))
        if before is not None and before != value:
            self.fail("4 exactly once", f"output {number} of {peer} left twice with different values", peer)
        self.outputs[(peer, number)] = value
        needs = self.gated.get((process.address, number), {})
        for needed, upper in needs.items():
            if not self.truly_durable(needed, upper):
                self.fail("17 gate", f"output {number} of {process.address} left before {needed} below {upper} was "
                          "committed", peer, needed)  # fmt: skip

    def after_fault(self, process: "Process", kind: str, text: str) -> None:
        """Nondeterminism never happens here; orphans only beyond the bound."""
        self.story.tell(process.address, f"reports {kind}: {text}")
        if kind == "nondeterminism" and self.world.schedule.strays:
            raise StrayNoticed
        if kind == "nondeterminism":
            self.fail("5 nondeterminism", text, process.address.split("@")[0])
        if kind == "orphan":
            self._check_bound_was_exceeded(process, text)

    def _check_bound_was_exceeded(self, process: "Process", text: str) -> None:
        """Whoever reports lost lineage may be some rounds behind: what counts is all that failed since."""
        assert process.shell is not None
        known = process.shell.machine.history.round
        failed = max((nodes for rounds, nodes in self.worst_failures.items() if rounds >= known), default=0)
        bound = self.world.policy.max_failures
        if bound is None or failed <= bound:
            self.fail("6 max_failures", f"lineage was lost with {failed} failed nodes: {text}", *self.world.members)

    def after_decision(self, decision: Decision) -> None:
        """What a round ends never happened: forget it, after checking that nobody alive depends on it."""
        self.story.tell(decision.writer, f"decides round {decision.round}: {say(decision)}")
        replaced = {beginning.peer for beginning in decision.beginnings} | set(decision.gone)
        for beginning in decision.beginnings:
            peer, index = beginning.peer, beginning.lower
            if index < self.committed.get(peer, START):
                self.fail("8 truncated is committed", f"round {decision.round} ends {peer} at {index}, but "
                          f"{self.committed[peer]} was committed", peer)  # fmt: skip
            if index <= len(self.logs.get(peer, ())) and not self.truly_durable(peer, index):
                self.fail("14 crash in recovery", f"round {decision.round} ends {peer} at {index}, which is not at a "
                          "majority: one more crash loses it", peer)  # fmt: skip
            if index > len(self.logs.get(peer, ())):
                self.fail(
                    "3 replay equality", f"round {decision.round} ends {peer} at {index}, beyond what it wrote", peer
                )
        for followed in self.followed.values():
            process = followed.process
            owner = process.peer.id
            if not process.alive or owner in replaced or not self.was_current(process.peer, decision):
                continue
            for beginning in decision.beginnings:
                if followed.needs.get(beginning.peer, START) > beginning.lower and owner not in self.world.retired:
                    self.fail("1 no orphans", f"round {decision.round} ends {beginning.peer} at {beginning.lower}, but "
                              f"{process.address} depends on it to {followed.needs[beginning.peer]}",
                              owner, beginning.peer)  # fmt: skip
        for beginning in decision.beginnings:
            self.forget(beginning.peer, beginning.lower)
        self.unsettled_nodes = {
            process.node: 0 for process in self.world.processes.values()
            if not process.alive and "@" in process.address and process.shell is not None
            and process.peer.id not in replaced and process.peer.id not in self.world.retired
            and self.was_current(process.peer, decision)
        }  # fmt: skip
        self._note_worst_failures()

    def before_store_returns(self) -> None:
        """The store was away from the beginning, nothing else failed, and the stash had room: all programs are done."""
        waiting = [name for name in self.world.programs if name not in self.done]
        if waiting:
            self.fail("16 zero waits", f"{', '.join(waiting)} waited for the store", *self.world.members)

    def before_succession(self, successor: contract.ReplicaSet) -> None:
        """The next replica set has all that the present one may have confirmed: logs, checkpoints and fences."""
        present = self.world.sets[-1]
        for peer in self.logs:
            upper = max(self.committed.get(peer, START), self.held_below(peer, present))
            if upper and not self.is_held(peer, upper, successor):
                self.fail("19 epochs", f"{successor} lacks {peer} below {upper}, which is durable", peer)
            before, after = self.newest_durable(peer), self.newest_durable(peer, successor)
            if before is not None and (after is None or age(after) < age(before)):
                self.fail("19 epochs", f"{successor} lacks the checkpoint of {peer} at {before.upper}", peer)
            if self.fenced_below(peer, present) > self.fenced_below(peer, successor):
                self.fail("19 epochs", f"{successor} lets in a life of {peer} that was fenced", peer)

    # the end

    def stuck(self) -> None:
        """Healed, and yet something never ends."""
        waiting = [text for text in map(self._why_waiting, self.world.members) if text]
        invariant = "10 recovery ends"
        peers = [followed.process.peer for followed in self.followed.values() if followed.process.alive]
        if self.world.store_was_away and any(peer.durability.flushing for peer in peers):
            invariant = "18 store outage"
        elif not self.world.drivers_here and any(peer.lineage.needs for peer in peers):
            invariant = "9 committed in the end"
        self.fail(invariant, "the world is healed and yet does not come to rest: " + "; ".join(waiting),
                  *self.world.members)  # fmt: skip

    def _why_waiting(self, name: PeerId) -> str:
        process = self.world.current(name)
        if name in self.world.retired:
            return ""
        if process is None or process.shell is None or not process.alive:
            return f"{name} is not there"
        peer = process.peer
        if peer.program.script:
            return f"{name} replays and waits for {peer.program.missing_caller}"
        if peer.program.waiting:
            return f"{name} waits for {peer.program.waiting}"
        if peer.lineage.needs:
            return f"{name} has uncommitted needs {peer.lineage.needs}"
        return ""

    def finish(self) -> None:
        """Everything that was held is committed, every call ran, every output left."""
        for followed in self.followed.values():
            process = followed.process
            if not process.alive or not self.is_current(process.peer) or self.has_gone(process.peer.id):
                continue
            stash = process.peer.lineage.stash
            held = [entry for piece in process.peer.lineage.all_ranges() for entry in piece.entries]
            if stash.bytes != sum(map(size_bytes, held)):
                self.fail("15 bounded", f"{process.address} charges {stash.bytes} bytes for {len(held)} entries",
                          process.peer.id)  # fmt: skip
            if process.peer.lineage.needs:
                self.fail("9 committed in the end", f"{process.address} still needs {process.peer.lineage.needs}",
                          process.peer.id)  # fmt: skip
            self._check_all_ran(process.peer)
        present = self.world.sets[-1]
        for peer, log in self.logs.items():
            if log and not self.is_held(peer, Index(len(log)), present):
                self.fail("9 committed in the end", f"the log of {peer} is not committed to {len(log)}", peer)
            base = max([of.logs[peer].base for of in self.replicas_of(present) if peer in of.logs], default=START)
            kept = self.newest_durable(peer)
            if base > (kept.upper if kept is not None else START):
                self.fail("12 deleted too early", f"{peer} is truncated below {base} without a checkpoint there", peer)
        for (peer, number), (_, value, _) in self.emitted.items():
            if not self.has_gone(peer) and self.outputs.get((peer, number)) != value:
                self.fail("4 exactly once", f"output {number} of {peer} never left, or left otherwise", peer)

    def _check_all_ran(self, peer: Peer) -> None:
        for callee, counterpart in peer.counterparts.items():
            ran = sum(1 for call, _ in self.runs.get(callee, {}).values() if call.caller == peer.id)
            made = counterpart.outbox.calls.upper
            if ran != made:
                self.fail("4 exactly once", f"{callee} ran {ran} of {made} calls of {peer.id}", peer.id, callee)
