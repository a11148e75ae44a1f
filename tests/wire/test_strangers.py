"""Who does not know the secret is dropped, is never heard, and does not disturb those who do."""

import os
import resource
import socket
from collections.abc import Callable, Iterator

import pytest

from lineage_stash.wire.frames import header
from lineage_stash.wire.handshake import NONCE_BYTES, VERSION, Handshake
from tests.wire.conftest import SideMaker
from tests.wire.sides import OTHER_SECRET, SECRET, Side, dialled, frame, opened, until

Keep = Callable[[socket.socket], socket.socket]


def hello(secret: bytes = SECRET) -> bytes:
    return Handshake(secret, "stranger", is_client=True, nonce=os.urandom(NONCE_BYTES)).receive(b"")


SAYINGS = {
    "garbage": os.urandom(3000),
    "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "a frame": frame(1, b"let me in"),
    "a huge length": header(1, 1 << 30),
    "an old version": hello().replace(bytes([VERSION]), b"\0", 1),
    "a huge introduction": hello()[:38] + b"\xff\xff",
    "a hello and a wrong proof": hello() + b"p" * 32,
    "a hello, a wrong proof and a frame": hello() + b"p" * 32 + frame(1, b"let me in"),
    "half a hello": hello()[:20],
    "a hello and no proof": hello(),
    "nothing": b"",
}


def still_works(server: Side, client: Side) -> bool:
    """Whether the open connection of these two still carries frames both ways."""
    known = len(server.frames), len(client.frames)
    server.opened[0].send(5, b"to the client")
    client.opened[0].send(6, b"to the server")
    until(lambda: (len(server.frames), len(client.frames)) == (known[0] + 1, known[1] + 1), server, client)
    return server.frames[-1] == (6, b"to the server") and client.frames[-1] == (5, b"to the client")


@pytest.mark.parametrize("saying", SAYINGS.values(), ids=SAYINGS.keys())
def test_stranger_is_dropped_and_never_heard(make_side: SideMaker, anywhere: str, keep: Keep, saying: bytes) -> None:
    server, client = make_side("server"), make_side("client")
    address = server.loop.listen(anywhere)
    opened(server, client, address)
    server.loop.handshake_deadline_s = 0.05
    stranger = keep(dialled(address))
    stranger.sendall(saying)
    until(lambda: server.loop.strangers_dropped, server, client)
    assert server.loop.strangers_dropped == 1
    assert server.frames == server.lost == []
    assert len(server.opened) == 1
    assert still_works(server, client)
    assert ended(stranger)


def ended(stranger: socket.socket) -> bool:
    """Whether the other side has closed, after at most the answer to a hello."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("who", ["client", "server"])
def test_other_secret_is_a_refusal_to_whoever_connected(make_side: SideMaker, anywhere: str, who: str) -> None:
    secrets = {"client": SECRET, "server": SECRET, who: OTHER_SECRET}
    server, client = (make_side(name, secrets[name]) for name in ("server", "client"))
    ours = client.loop.connect(server.loop.listen(anywhere))
    ours.send(1, b"nobody gets this")
    until(lambda: client.lost and server.loop.strangers_dropped, server, client)
    assert client.lost == [(ours, "refused: another secret")]
    assert server.opened == server.lost == server.frames == []


def test_client_of_another_version_is_told_that_it_is_refused(
    make_side: SideMaker, anywhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = make_side("server"), make_side("client")
    address = server.loop.listen(anywhere)
    monkeypatch.setattr("lineage_stash.wire.handshake.VERSION", VERSION + 1)
    client.loop.connect(address)
    monkeypatch.setattr("lineage_stash.wire.handshake.VERSION", VERSION)
    until(lambda: client.lost, server, client)
    assert client.reasons[0] in ("refused: closed by the other side", "refused: connection reset")
    assert server.loop.strangers_dropped == 1


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """A limit of some thirty more descriptors than are open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(int(fd) for fd in os.listdir("/proc/self/fd")) + 30
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_oldest_stranger_makes_room_for_one_more(make_side: SideMaker, anywhere: str, keep: Keep) -> None:
    server, client = make_side("server", max_unproven=3), make_side("client")
    address = server.loop.listen(anywhere)
    opened(server, client, address)
    strangers = [keep(dialled(address)) for _ in range(5)]
    until(lambda: server.loop.strangers_dropped == 2, server)
    assert ended(strangers[0])
    assert ended(strangers[1])
    strangers[2].setblocking(False)
    with pytest.raises(BlockingIOError):
        strangers[2].recv(1)
    assert still_works(server, client)
    opened(server, client, address)


def test_crowd_of_strangers_does_not_use_up_the_descriptors(
    make_side: SideMaker, anywhere: str, few_descriptors: int
) -> None:
    server, client = make_side("server", max_unproven=4), make_side("client")
    address = server.loop.listen(anywhere)
    opened(server, client, address)
    for _ in range(50):
        crowd = [dialled(address) for _ in range(4)]
        until(lambda: not server.loop.poll(0), server)
        for stranger in crowd:
            stranger.close()
    until(lambda: server.loop.strangers_dropped == 200, server)
    assert still_works(server, client)
    assert max(int(fd) for fd in os.listdir("/proc/self/fd")) < few_descriptors


def test_listener_without_descriptors_pauses_and_goes_on_when_there_are_some(
    make_side: SideMaker, anywhere: str, few_descriptors: int
) -> None:
    server, client = make_side("server"), make_side("client")
    address = server.loop.listen(anywhere)
    opened(server, client, address)
    waiting = client.loop.connect(address)
    hoard = []
    try:
        while True:
            hoard.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        assert len(hoard) < few_descriptors
    try:
        turns = sum(server.loop.poll(0) for _ in range(50))
        assert turns < 5
        assert still_works(server, client)
    finally:
        for fd in hoard:
            os.close(fd)
    until(lambda: waiting.is_open, server, client)
