"""A station: one process of the global-checkpoint system on the wire.

It listens, and whoever waits for something waits on the sockets itself, as in the system that this one is compared
with, with the same patience before it sleeps. A steward, a second thread, looks after the network of a driver whose own
thread is elsewhere.
"""

import os
import secrets
import threading
from collections.abc import Callable

from lineage_stash.on_ray.process import AWAKE_S, AWAY_S, DEAD_AFTER_MS, socket_folder
from lineage_stash.wire.connection import Connection
from lineage_stash.wire.loop import Loop

TURN_S = 0.05
"""How long to wait at most before looking whether what one waits for has come by another thread."""


class Station:
    """A loop, its lock, and who waits on it."""

    def __init__(
        self,
        secret: bytes,
        introduction: str,
        *,
        on_frame: Callable[[Connection, int, bytes], None],
        on_open: Callable[[Connection], None],
        on_lost: Callable[[Connection, str], None],
    ) -> None:
        self.lock = threading.RLock()
        self.loop = Loop(secret, introduction, on_frame=on_frame, on_open=on_open, on_lost=on_lost, lock=self.lock,
                         dead_after_ms=DEAD_AFTER_MS)  # fmt: skip
        self.address = self.loop.listen(f"unix:{socket_folder()}/{os.getpid()}-{secrets.token_hex(6)}.sock")
        self.closed = False
        self._turns = 0
        self._is_lively = False
        self._steward: threading.Thread | None = None

    def wait(self, timeout_s: float = TURN_S) -> None:
        """Wait on the sockets, and act on what comes."""
        self._turns += 1
        self._is_lively = self.loop.poll(timeout_s, AWAKE_S if self._is_lively else 0.0)

    def start_steward(self) -> None:
        """Have a second thread wait on the sockets whenever no other one does."""
        self._steward = threading.Thread(target=self._keep_house, name="global checkpoint steward", daemon=True)
        self._steward.start()

    def _keep_house(self) -> None:
        pause = threading.Event()
        while not self.closed:
            seen = self._turns
            pause.wait(AWAY_S)
            while self._is_needed(seen):
                self._take_turn()

    def _is_needed(self, seen: int) -> bool:
        return not self.closed and self._turns == seen and not self.loop.sleepers

    def _take_turn(self) -> None:
        try:
            happened = self.loop.poll(TURN_S)
        except (ValueError, OSError):
            if not self.closed:
                raise  # otherwise the loop was closed under this thread, which ends next
            return
        if happened and self.loop.sleepers:
            self.loop.wake()  # somebody may sleep there for what came here

    def close(self) -> None:
        """Leave the network."""
        self.closed = True
        if self._steward is not None and self._steward is not threading.current_thread():
            self.loop.wake()
            self._steward.join(5.0)
        with self.lock:
            self.loop.close()
