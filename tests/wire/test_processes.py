"""Real processes: a killed one is missed at once, and a forked child does not hurt or hide its parent's connections."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wire.conftest import SideMaker
from tests.wire.sides import SECRET, until

ROOT = Path(__file__).parents[2]

# Connects, says its process id, and answers every frame.
ECHO = """
import os, sys
from lineage_stash.wire.loop import Loop

def on_open(connection):
    connection.send(1, str(os.getpid()).encode())

def on_frame(connection, kind, body):
    connection.send(kind, body)

loop = Loop(sys.argv[2].encode(), "echo", on_frame=on_frame, on_open=on_open, on_lost=lambda *_: sys.exit(0))
loop.connect(sys.argv[1])
"""

FOREVER = """
while True:
    loop.poll(60)
"""

# Forks a child that forgets the loop and then does nothing, and says the child's process id when it has forgotten.
FORKED = (
    ECHO
    + """
import signal
loop.listen("tcp:127.0.0.1:0")
has_forgotten, say_so = os.pipe()

def fork(connection):
    child = os.fork()
    if child == 0:
        loop.forget()
        loop.forget()
        connection.send(9, b"a child has nothing to say")
        connection.close("and nothing to close")
        loop.post(lambda: None)
        loop.wake()
        loop.close()
        left = [fd for fd in range(3, 100) if os.path.exists(f"/proc/self/fd/{fd}")]
        os.write(say_so, str(left == [has_forgotten, say_so]).encode())
        while True:
            signal.pause()
    connection.send(2, str(child).encode())
    connection.send(3, os.read(has_forgotten, 1000))

loop.on_open = fork
"""
    + FOREVER
)

Starter = Callable[[str, str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Starter]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(program: str, address: str) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen([sys.executable, "-c", program, address, SECRET.decode()], cwd=ROOT))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_killed_process_is_missed_at_once(make_side: SideMaker, start: Starter, anywhere: str) -> None:
    server = make_side("server")
    process = start(ECHO + FOREVER, server.loop.listen(anywhere))
    until(lambda: server.frames, server)
    assert server.frames == [(1, str(process.pid).encode())]
    server.opened[0].send(7, b"are you there?")
    until(lambda: len(server.frames) == 2, server)
    assert server.lost == []
    process.kill()
    until(lambda: server.lost, server)
    assert server.lost == [(server.opened[0], server.reasons[0])]
    assert server.reasons[0] in ("closed by the other side", "connection reset")


def test_killed_process_is_missed_while_a_child_that_forgot_lives_on(
    make_side: SideMaker, start: Starter, anywhere: str
) -> None:
    server = make_side("server")
    process = start(FORKED, server.loop.listen(anywhere))
    until(lambda: len(server.frames) == 2 or server.lost, server)
    (_, child), (_, all_closed) = server.frames
    try:
        assert all_closed == b"True"
        server.opened[0].send(7, b"is the parent's end unhurt?")
        until(lambda: len(server.frames) == 3, server)
        assert server.frames[-1] == (7, b"is the parent's end unhurt?")
        process.kill()
        until(lambda: server.lost, server)
        os.kill(int(child), 0)
    finally:
        os.kill(int(child), signal.SIGKILL)
    assert server.reasons[0] in ("closed by the other side", "connection reset")
