"""The facts of a cluster that is gone, from the files that its store has left on this machine's disks.

There are logs, checkpoints and lives, and so who called whom, and causes; on the machine where the coordinator was,
recoveries too. What was only in the control plane went with the cluster: names, nodes and processes.
"""

import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from lineage_stash.cli.logs import LogView
from lineage_stash.cli.records import Recovery, in_order, left_recoveries
from lineage_stash.cli.runs import run_of
from lineage_stash.cli.sources import FolderSource, NotFound, Source, find_replicas, newest
from lineage_stash.cli.status import bytes_of
from lineage_stash.core.entry import Ran
from lineage_stash.core.ids import PeerId
from lineage_stash.store.contract import Item
from lineage_stash.ui.facts import NO_FIGURES, recovery_facts
from lineage_stash.ui.live import first_line, log_facts, past_facts
from lineage_stash.ui.server import Facts, NotThere

TAIL = 512
"""How much of the end of a log is looked at for who called how often: numbers of calls grow along a log."""

ACTOR = re.compile(r".*/(?P<class_name>[^/]+?)-\d+(?:-\d+)*")

PROMISE = "The cluster is gone. This is what its store has left: nothing is running, and nothing is changed by looking."

NO_RECOVERIES = (
    "There is no file of recoveries beside the store: nothing has failed, or the coordinator was on another machine. "
    "How often a peer was recovered is in the overview."
)


class FinishedRun:
    """Folders of replicas, read once."""

    def __init__(self, storages: Iterable[Path]) -> None:
        """Raises `NotFound` if there is no store in them."""
        self._storages = list(storages)
        self._source = FolderSource(self._storages)
        self._lock = threading.Lock()
        self._facts: Facts | None = None

    def close(self) -> None:
        """Let go of the files."""
        self._source.close()

    def facts(self) -> Facts:
        """All that the files say; they do not change any more."""
        with self._lock:
            if self._facts is None:
                self._facts = self._collect()
            return self._facts

    def log(self, peer: str, before: int | None) -> Facts:
        """Some entries of a log in words, the newest, or those before an index."""
        return self._read(lambda source: log_facts(source, peer, before))

    def past(self, call: str) -> Facts:
        """The causal past of a call as a graph."""
        return self._read(lambda source: past_facts(source, call))

    def recovery(self, wanted: str) -> Facts:
        """One recovery, with what the log says of it."""
        facts = self.facts()
        found = next((one for one in facts["recoveries"] if one["id"] == wanted), None)
        if found is None:
            raise NotThere(f"there is no recovery {wanted}")
        item = self._source.item(found["peer"])
        began = {} if item is None else dict(item.segments)
        affected = [flow["caller"] for flow in facts["flows"] if flow["callee"] == found["peer"]]
        return {"history_ends": began.get(found["incarnation"]), "affected": affected}

    def _read(self, ask: Callable[[Source], Facts]) -> Facts:
        with self._lock:
            try:
                return ask(self._source)
            except NotFound as error:
                raise NotThere(first_line(error)) from error

    def _collect(self) -> Facts:
        items = {peer: item for peer in self._source.peers() if (item := self._source.item(peer)) is not None}
        flows = [flow for peer in items for flow in self._flows_into(peer)]
        without_log = sorted({flow["caller"] for flow in flows} - set(items))
        peers = [*map(caller_facts, without_log), *map(peer_facts, items.values())]
        replicas = find_replicas(self._storages)
        recoveries = [recovery_facts(one) for one in self._recoveries(replicas) if PeerId(one.peer) in items]
        return {
            "at": max(path.stat().st_mtime for folder in replicas for path in folder.iterdir()),
            "source": {"live": False, "name": str(self._storages[0]), "title": self._source.where},
            "trouble": "; ".join(f"left out: {note}" for note in self._source.notes),
            "promise": {"level": "files", "word": "Files.", "text": PROMISE},
            "runs": [{"run": run, "state": "over", "started_at": None, "ended_at": None, "entrypoint": ""}
                     for run in sorted({run_of(peer) for peer in items})],
            "services": [service_facts(path, self._source.where) for path in replicas],
            "lost": {},
            "archive": None,
            "alive_nodes": [],
            "epoch": None,
            "durability": None,
            "spares": None,
            "round": max((item.segments[-1][0] for item in items.values()), default=0),
            "phase": None,
            "peers": peers,
            "flows": flows,
            "recoveries": recoveries,
            "no_recoveries": NO_RECOVERIES,
            "under_way": [],
            "totals": {
                "peers": len(peers),
                "recoveries": len(recoveries),
                "entries": sum(item.upper for item in items.values()),
                "kept_entries": sum(item.upper - item.base for item in items.values()),
                "held_bytes": sum(peer["held_bytes"] for peer in peers),
                "calls_per_s": None,
            },
            "reads_logs": True,
        }  # fmt: skip

    def _recoveries(self, replicas: list[Path]) -> tuple[Recovery, ...]:
        folders = sorted({replica.parent for replica in replicas})
        return in_order(one for folder in folders for one in left_recoveries(folder))

    def _flows_into(self, peer: PeerId) -> list[Facts]:
        """Who has called a peer, and how often; that somebody has created it, and no more, is no flow."""
        view = LogView(self._source, peer)
        last = newest(view.item.checkpoints)
        calls = {} if last is None else {caller: int(of.finished) for caller, of in last.calls_from}
        for _, _, entry in view.entries(view.upper - TAIL, view.upper):
            if isinstance(entry, Ran):
                calls[entry.caller] = max(calls.get(entry.caller, 0), entry.seqno + 1)
        creator = peer.rpartition("/")[0]
        return [{"caller": caller, "callee": peer, "calls": count, "per_s": None} for caller, count in calls.items()
                if count > 1 or caller != creator]  # fmt: skip


def caller_facts(peer: PeerId) -> Facts:
    """What is known of one that called others, and that keeps no log: a script without a run id."""
    named = ACTOR.fullmatch(peer)
    return {
        **NO_FIGURES,
        "peer": peer,
        "kind": "actor" if named else "driver",
        "class_name": named["class_name"] if named else "",
        "name": "",
        "node": "",
        "host": "",
        "pid": None,
        "incarnation": 0,
        "recovered": 0,
        "state": "no log",
        "base": 0,
        "upper": 0,
        "durable": 0,
        "checkpointed": 0,
        "held_bytes": 0,
        "calls_per_s": None,
    }


def peer_facts(item: Item) -> Facts:
    """What the files have of one peer."""
    last = newest(item.checkpoints)
    return {
        **caller_facts(item.peer),
        "incarnation": int(item.segments[-1][0]),
        "recovered": len(item.segments) - 1,
        "state": "retired" if last is not None and last.final else "kept",
        "base": item.base,
        "upper": item.upper,
        "durable": item.upper,
        "checkpointed": 0 if last is None else last.upper,
        "held_bytes": bytes_of(item),
    }


def service_facts(folder: Path, read: str) -> Facts:
    """One replica's folder."""
    is_read = str(folder) in read
    held = sum(path.stat().st_size for path in folder.iterdir())
    return {"name": folder.name, "up": is_read, "node": "", "host": "", "pid": None, "held_bytes": held,
            "found": str(folder) if is_read else f"{folder} is damaged, and left out"}  # fmt: skip
