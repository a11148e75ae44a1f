"""Shared memory over Unix sockets: what arrives is the same memory, and what is not what it says is refused."""

import gc
import os
import socket
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from lineage_stash.core.rope import parts_of, whole
from lineage_stash.wire import cargo, shared
from lineage_stash.wire.cargo import CARRIES
from lineage_stash.wire.frames import header
from lineage_stash.wire.shared import Shared
from tests.wire.conftest import SideMaker
from tests.wire.sides import opened, proved, until

PART = cargo._PART
ONE = cargo._COUNT.pack(1)


def made_of(*pieces: bytes) -> Shared:
    made = Shared.made_of(pieces)
    assert made is not None
    return made


def open_descriptors() -> int:
    gc.collect()  # what other tests have left is no concern of this one
    return len(os.listdir("/proc/self/fd"))


def test_shared_memory_is_the_pieces_in_order_and_cannot_be_changed() -> None:
    made = made_of(b"one", b"", b"two" * 1000)
    assert bytes(made) == b"one" + b"two" * 1000
    assert memoryview(made).readonly
    with pytest.raises(PermissionError):
        os.pwrite(made.descriptor, b"other", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(made.descriptor, 1)


def test_forked_child_that_has_closed_its_descriptors_closes_no_others_in_their_place() -> None:
    made = made_of(b"large")
    child = os.fork()
    if not child:
        os.close(made.descriptor)
        other = os.dup2(os.open("/dev/null", os.O_RDONLY), made.descriptor)
        del made
        os._exit(0 if os.fstat(other) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert os.fstat(made.descriptor).st_size == 5


def test_shared_memory_comes_over_a_unix_socket_as_the_same_memory(make_side: SideMaker, tmp_path: Path) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(f"unix:{tmp_path}/socket"))
    large = made_of(b"x" * 3_000_000)
    ours.send(5, (b"before", large, b"between", large, b"after"))
    until(lambda: server.frames, server, client)
    kind, body = server.frames[0]
    assert (kind, body) == (5, b"beforebetweenafter")
    assert whole(body) == b"before" + b"x" * 3_000_000 + b"between" + b"x" * 3_000_000 + b"after"
    came = [part for _, part in parts_of(body)]
    assert {os.fstat(part.descriptor).st_ino for part in came} == {os.fstat(large.descriptor).st_ino}
    assert client.loop.poll(0) is False


def test_shared_memory_goes_over_tcp_as_bytes(make_side: SideMaker) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen("tcp:127.0.0.1:0"))
    ours.send(5, (b"before", made_of(b"x" * 3_000_000), b"after"))
    until(lambda: server.frames, server, client)
    assert server.frames == [(5, b"before" + b"x" * 3_000_000 + b"after")]


def test_frames_with_and_without_cargo_arrive_in_order_and_leave_no_descriptors(
    make_side: SideMaker, tmp_path: Path
) -> None:
    server, client = make_side("server"), make_side("client")
    theirs, ours = opened(server, client, server.loop.listen(f"unix:{tmp_path}/socket"))
    before = open_descriptors()
    for number in range(50):
        text = b"%d" % number
        for side in (ours, theirs):
            side.send(1, text * 10)
            side.send(2, (text, made_of(text * 1000), b"y" * 100_000))
    until(lambda: len(server.frames) == len(client.frames) == 100, server, client)
    expected = [each for n in range(50) for each in ((1, b"%d" % n * 10), (2, b"%d" % n * 1001 + b"y" * 100_000))]
    for side in (server, client):
        assert [(kind, whole(body)) for kind, body in side.frames] == expected
        side.frames.clear()
    assert open_descriptors() == before


def test_more_cargo_than_the_kernel_takes_at_a_time_goes_as_bytes(make_side: SideMaker, tmp_path: Path) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(f"unix:{tmp_path}/socket"))
    pieces = tuple(made_of(b"%d," % number) for number in range(300))
    ours.send(1, pieces)
    until(lambda: server.frames, server, client)
    body = server.frames[0][1]
    assert whole(body) == b"".join(b"%d," % number for number in range(300))
    assert len(parts_of(body)) == cargo.MOST_PARTS


def test_a_process_that_has_enough_of_it_takes_bytes(
    make_side: SideMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = make_side("server"), make_side("client")
    _, ours = opened(server, client, server.loop.listen(f"unix:{tmp_path}/socket"))
    monkeypatch.setattr(shared.resource, "getrlimit", lambda _: (8, 8))
    ours.send(1, (made_of(b"large"),))
    until(lambda: server.frames, server, client)
    assert [type(part) for _, part in parts_of(server.frames[0][1])] == [bytes]
    assert whole(server.frames[0][1]) == b"large"


def sealed() -> int:
    large = made_of(b"large")
    return os.dup(large.descriptor)


def unsealed() -> int:
    descriptor = os.memfd_create("unsealed")
    os.write(descriptor, b"large")
    return descriptor


BAD = {
    "no descriptor": (ONE + PART.pack(0, 5), None),
    "a descriptor that is a file": (ONE + PART.pack(0, 5), lambda: os.open("/dev/zero", os.O_RDONLY)),
    "memory that is not sealed": (ONE + PART.pack(0, 5), unsealed),
    "memory of another length": (ONE + PART.pack(0, 4), sealed),
    "a place outside of the frame": (ONE + PART.pack(9, 5), sealed),
    "half a table": (ONE + b"\0\0", sealed),
    "no table": (b"", sealed),
    "an empty table": (b"\0\0", sealed),
}


@pytest.mark.parametrize(("body", "make"), BAD.values(), ids=BAD.keys())
def test_cargo_that_is_not_what_it_says_ends_the_connection_and_leaves_nothing(
    make_side: SideMaker, tmp_path: Path, body: bytes, make: Callable[[], int] | None
) -> None:
    server = make_side("server")
    address = server.loop.listen(f"unix:{tmp_path}/socket")
    before = open_descriptors()
    with proved(server, address) as member:
        descriptors = [] if make is None else [make()]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        member.sendmsg([header(1 | CARRIES, len(body)) + body], rights)
        for descriptor in descriptors:
            os.close(descriptor)
        until(lambda: server.lost, server)
    assert server.frames == []
    assert "refused" in server.lost[0][1]
    server.opened.clear()
    server.lost.clear()
    assert open_descriptors() == before
