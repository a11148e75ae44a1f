"""`stash ui`: joins a cluster, or opens files, and serves the page until Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from lineage_stash.cli.cluster import is_token, joined
from lineage_stash.ui.access import Access
from lineage_stash.ui.finished import FinishedRun
from lineage_stash.ui.live import LiveCluster
from lineage_stash.ui.server import LOOK_S, Server, Source, serving

Say = Callable[[str], None]


class CannotListen(Exception):
    """Why not, and what to do; one line."""


def show_cluster(address: str | None, port: int | None, say: Say) -> None:
    """Show a cluster; its token opens the page too. Raises `NotJoined` and `CannotListen`."""
    with joined(address) as cluster:
        _show(LiveCluster(cluster), Access(is_token), port, say, f"the cluster at {cluster.address}")


def show_files(storages: list[Path], port: int | None, say: Say) -> None:
    """Show what clusters have left; raises `NotFound` and `CannotListen`."""
    with closing(FinishedRun(storages)) as run:
        _show(run, Access(lambda _: False), port, say, ", ".join(map(str, storages)))


@contextmanager
def _listening(source: Source, access: Access, port: int | None) -> Iterator[Server]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serving(source, access, port))
        except OSError as error:
            raise CannotListen(
                f"cannot listen at port {port}: {error.strerror}; give another --port, or none"
            ) from error
        yield server


def _show(source: Source, access: Access, port: int | None, say: Say, what: str) -> None:
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _listening(source, access, port) as server:
            say(f"{what} is shown to whoever on this machine has this address, until Ctrl-C:\n{server.url}")
            while not ended.wait(LOOK_S):  # a signal that a thread of Ray's is struck by does not wake this one
                pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
