"""Two real loops: frames arrive whole and in order, a loss is told once with its reason, and nothing blocks."""

import errno
import fcntl
import os
import socket
import stat
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lineage_stash.wire.connection import Connection
from lineage_stash.wire.frames import MAX_FRAME_BYTES, FrameTooLarge, header
from tests.wire.conftest import SideMaker
from tests.wire.sides import frame, opened, proved, until

# What arrives.


def test_frames_of_all_sizes_arrive_in_order_both_ways(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    theirs, ours = opened(server, client, server.loop.listen(anywhere))
    sent = [
        (size % 128, bytes([size % 256]) * size) for size in (0, 1, 100, 16384, 16385, 65536, 300_000, 3, 2_000_000)
    ]
    for kind, body in sent:
        ours.send(kind, body)
        theirs.send(kind, body)
    until(lambda: len(server.frames) == len(client.frames) == len(sent), server, client)
    assert server.frames == client.frames == sent


def test_thousands_of_small_frames_arrive_in_order_both_ways(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    theirs, ours = opened(server, client, server.loop.listen(anywhere))
    count = 20_000
    for number in range(count):
        ours.send(1, b"%d" % number)
        theirs.send(2, b"%d" % number)
    until(lambda: len(server.frames) == len(client.frames) == count, server, client)
    assert server.frames == [(1, b"%d" % number) for number in range(count)]
    assert client.frames == [(2, b"%d" % number) for number in range(count)]
    assert ours.queued_bytes == theirs.queued_bytes == 0


def test_body_of_100_megabytes_arrives_between_small_ones(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(anywhere))
    large = os.urandom(1 << 20) * 100
    for body in (b"before", large, b"after"):
        ours.send(1, body)
    assert ours.queued_bytes > 50 << 20
    until(lambda: len(server.frames) == 3, server, client)
    assert server.bodies == [b"before", large, b"after"]


def test_body_in_pieces_arrives_as_one(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(anywhere))
    many = tuple(b"%d" % number * (number % 7) for number in range(5000))
    ours.send(1, (b"a", b"", b"b"))
    ours.send(2, ())
    ours.send(3, (b"x" * 500_000, b"", b"y" * 500_000))
    ours.send(4, many)
    until(lambda: len(server.frames) == 4, server, client)
    assert server.bodies == [b"ab", b"", b"x" * 500_000 + b"y" * 500_000, b"".join(many)]


def test_frames_sent_before_the_handshake_is_done_arrive_first(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    client.loop.on_open = lambda connection: connection.send(1, b"third")
    ours = client.loop.connect(server.loop.listen(anywhere))
    ours.send(1, b"first")
    ours.send(1, b"second" * 10_000)
    assert ours.queued_bytes > 60_000
    assert not ours.is_open
    until(lambda: len(server.frames) == 3, server, client)
    assert server.bodies == [b"first", b"second" * 10_000, b"third"]


def test_introductions_and_addresses_are_told(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    address = server.loop.listen(anywhere)
    client.loop.introduction = "client, renamed"
    theirs, ours = opened(server, client, address)
    assert (theirs.introduction, theirs.address) == ("client, renamed", None)
    assert (ours.introduction, ours.address) == ("server", address)
    assert client.opened == [ours]


def test_body_above_the_bound_is_refused_to_the_sender(make_side: SideMaker, tmp_path: Path) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(f"unix:{tmp_path}/socket"))
    piece = b"x" * (1 << 26)
    with pytest.raises(FrameTooLarge):
        ours.send(1, (piece,) * (MAX_FRAME_BYTES // len(piece)) + (b"x",))
    ours.send(1, b"still there")
    until(lambda: server.frames, server, client)


# Losses.


def test_close_is_told_once_on_both_sides_with_its_reason(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    theirs, ours = opened(server, client, server.loop.listen(anywhere))
    ours.close("enough")
    ours.close("twice")
    ours.send(1, b"nobody gets this")
    assert client.lost == []
    assert not ours.is_open
    until(lambda: client.lost and server.lost, server, client)
    server.loop.poll(0)
    client.loop.poll(0)
    assert client.lost == [(ours, "enough")]
    assert server.lost == [(theirs, "closed by the other side")]
    assert server.frames == []


def test_frames_that_had_arrived_are_delivered_before_the_loss(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    theirs, ours = opened(server, client, server.loop.listen(anywhere))
    lost_after: list[int] = []
    server.loop.on_lost = lambda *_: lost_after.append(len(server.frames))
    for number in range(100):
        ours.send(1, b"%d" % number * 50)
    until(lambda: has_arrived(ours), client)
    client.loop.close()
    theirs.send(2, b"too late")
    theirs.send(2, b"too late again" * 10_000)
    until(lambda: lost_after, server)
    assert lost_after == [100]


def has_arrived(connection: Connection) -> bool:
    """Whether all that was sent is in the other side's socket, where TCP says so."""
    in_kernel = bytearray(4)
    if connection._socket.family == socket.AF_INET:
        fcntl.ioctl(connection._socket, termios.TIOCOUTQ, in_kernel)
    return not connection.queued_bytes and not any(in_kernel)


class NoRoom:
    """A socket to which nothing can be written, for a reason that does not end it."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def send(self, _: bytes) -> int:
        raise OSError(errno.ENOBUFS, "no buffer space available")


def test_socket_that_cannot_be_written_to_is_lost_after_what_had_arrived(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    theirs, ours = opened(server, client, server.loop.listen(anywhere))
    ours.send(1, b"had arrived")
    until(lambda: has_arrived(ours), client)
    theirs._socket = NoRoom(theirs._socket)
    theirs.send(2, b"cannot be sent")
    theirs.send(2, b"nor this" * 10_000)
    assert server.lost == []
    assert theirs.queued_bytes == 0
    until(lambda: server.lost and client.lost, server, client)
    assert server.bodies == [b"had arrived"]
    assert server.reasons == ["no buffer space available"]
    assert client.frames == []


def test_reset_is_told_as_one(make_side: SideMaker, keep: Callable[[socket.socket], socket.socket]) -> None:
    server = make_side("server")
    plain = keep(proved(server, server.loop.listen("tcp:127.0.0.1:0")))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    plain.close()
    until(lambda: server.lost, server)
    assert server.reasons == ["connection reset"]


def test_connection_with_a_length_above_the_bound_is_lost_after_the_frames_before_it(
    make_side: SideMaker, anywhere: str, keep: Callable[[socket.socket], socket.socket]
) -> None:
    server = make_side("server", max_frame_bytes=1000)
    plain = keep(proved(server, server.loop.listen(anywhere)))
    plain.sendall(frame(1, b"good") + header(1, 1001) + frame(1, b"never looked at"))
    until(lambda: server.lost, server)
    assert server.bodies == [b"good"]
    assert server.reasons == ["refused: a body of 1001 bytes, and 1000 is the most"]
    assert server.loop.strangers_dropped == 0


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("unix:{}/nobody", "no such file or directory"),
        ("unix:{}/" + "long" * 50, "af_unix path too long"),
        ("tcp:127.0.0.1:{}", "connection refused"),
        ("tcp:[::1]:{}", "connection refused"),
    ],
)
def test_connect_to_nobody_is_a_loss(make_side: SideMaker, tmp_path: Path, address: str, reason: str) -> None:
    client = make_side("client")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        at = address.format(tmp_path if address.startswith("unix") else unused.getsockname()[1])
        ours = client.loop.connect(at)
        ours.send(1, b"queued")
        assert client.lost == []
        until(lambda: client.lost, client)
    assert client.lost == [(ours, f"connect failed: {reason}")]
    assert ours.queued_bytes == 0


def test_connect_to_someone_who_never_answers_is_lost_in_time(make_side: SideMaker) -> None:
    client = make_side("client", handshake_deadline_s=0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client.loop.connect(f"tcp:127.0.0.1:{silent.getsockname()[1]}")
        until(lambda: client.lost, client)
    assert client.reasons == ["refused: no handshake within 0.05 s"]


def test_connect_to_a_full_listener_is_tried_again(make_side: SideMaker, tmp_path: Path) -> None:
    path = f"{tmp_path}/socket"
    client = make_side("client")
    with socket.socket(socket.AF_UNIX) as narrow:
        narrow.bind(path)
        narrow.listen(0)
        waiting = [client.loop.connect(f"unix:{path}") for _ in range(3)]
        for _ in range(len(waiting)):
            client.loop.poll(0.02)
        assert client.lost == []
        accepted = 0
        narrow.setblocking(False)

        def all_accepted() -> bool:
            nonlocal accepted
            try:
                narrow.accept()[0].close()
                accepted += 1
            except BlockingIOError:
                pass
            return accepted == len(waiting) == len(client.lost)

        until(all_accepted, client)
    assert set(client.reasons) <= {"refused: closed by the other side", "refused: connection reset"}


@pytest.mark.parametrize("address", ["", "unix:", "tcp:", "tcp:host", "tcp::1", "tcp:host:port", "udp:host:1", "/path"])
def test_address_that_is_none_is_a_mistake_of_the_caller(make_side: SideMaker, address: str) -> None:
    client = make_side("client")
    with pytest.raises(ValueError, match="is no address"):
        client.loop.connect(address)


# Exceptions.


class Fault(Exception):
    """What a callback raises in these tests."""


def test_exception_of_on_frame_leaves_the_frames_behind_it_to_the_next_poll(
    make_side: SideMaker, anywhere: str
) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(anywhere))

    def fail(_: Connection, kind: int, __: bytes) -> None:
        if kind == 9:
            raise Fault

    server.on_frame = fail
    for kind in (1, 9, 2, 9, 3):
        ours.send(kind, b"")
    ours.close("all said")
    faults = 0

    def is_lost() -> bool:
        nonlocal faults
        try:
            server.loop.poll(0)
        except Fault:
            faults += 1
        return bool(server.lost)

    until(is_lost, client)
    assert faults == 2
    assert [kind for kind, _ in server.frames] == [1, 9, 2, 9, 3]


def test_exception_of_on_open_loses_no_frame(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    ours = client.loop.connect(server.loop.listen(anywhere))
    ours.send(1, b"first")

    def fail(_: Connection) -> None:
        raise Fault

    server.loop.on_open = fail
    raised = 0

    def has_frame() -> bool:
        nonlocal raised
        try:
            server.loop.poll(0)
        except Fault:
            raised += 1
        return bool(server.frames)

    until(has_frame, client)
    assert raised == 1


def test_connection_closed_while_delivering_delivers_no_more(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(anywhere))
    server.on_frame = lambda connection, *_: connection.close("one is enough")
    for number in range(5):
        ours.send(number, b"")
    until(lambda: server.lost and client.lost, server, client)
    assert server.frames == [(0, b"")]
    assert server.reasons == ["one is enough"]


def test_loop_closed_while_delivering_is_closed(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(anywhere))
    server.on_frame = lambda *_: server.loop.close()
    ours.send(1, b"")
    ours.send(1, b"")
    until(lambda: server.frames, server)
    assert server.frames == [(1, b"")]
    assert server.lost == []
    until(lambda: client.lost, client)


# Descriptors.


def test_unix_socket_is_for_its_owner_only_and_goes_with_the_loop(make_side: SideMaker, tmp_path: Path) -> None:
    side = make_side("side")
    path = tmp_path / "socket"
    assert side.loop.listen(f"unix:{path}") == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    side.loop.close()
    side.loop.close()
    assert not path.exists()


def descriptors() -> set[int]:
    """What this process has open; without the one that looks."""
    return {int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}


def test_every_descriptor_is_close_on_exec_and_closed_in_the_end(make_side: SideMaker, anywhere: str) -> None:
    before = descriptors()
    server, client = make_side("server"), make_side("client")
    opened(server, client, server.loop.listen(anywhere))
    own = descriptors() - before
    assert len(own) == 7  # on each side epoll, eventfd and a connection; and a listener
    assert not any(os.get_inheritable(fd) for fd in own)
    server.loop.close()
    client.loop.close()
    assert descriptors() == before


def test_tcp_connection_notices_a_silent_machine(make_side: SideMaker) -> None:
    server, client = make_side("server"), make_side("client")
    for end in opened(server, client, server.loop.listen("tcp:127.0.0.1:0")):
        options = [
            end._socket.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
        ]
        assert options == [2000, 1, 1]
        assert end._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert end._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_process_that_does_not_read_is_given_up_over_tcp_in_the_time_that_the_loop_gives(make_side: SideMaker) -> None:
    """A limit that is known: to the kernel, a full buffer that nobody reads is as silent as a machine without power."""
    server, client = make_side("server"), make_side("client", dead_after_ms=50)
    _, ours = opened(server, client, server.loop.listen("tcp:127.0.0.1:0"))
    ours.send(1, b"x" * 50_000_000)
    until(lambda: client.lost, client)
    assert client.reasons == ["connection timed out"]
