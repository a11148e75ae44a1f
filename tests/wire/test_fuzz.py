"""Valid streams with parts changed: only declared refusals come out, and never more than the bound is held.

The changes are those that find mistakes in parsers: bytes replaced, stretches removed, repeated and swapped, lengths
that lie, and the stream cut short or fed in pieces of any size.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lineage_stash.wire.frames import HEADER_BYTES, FrameReader, FrameTooLarge
from lineage_stash.wire.handshake import MAX_INTRODUCTION_BYTES, NONCE_BYTES, Handshake, HandshakeRefused
from tests.wire.conftest import SideMaker
from tests.wire.sides import SECRET, dialled, frame, opened, proved, quick, until

BOUND = 4096
many = settings(quick, max_examples=400)
live = settings(quick, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


# What happens to the stretch [lower, upper) of a stream, given some bytes to put in.
Change = Callable[[bytes, int, int, bytes], bytes]
CHANGES: dict[str, Change] = {
    "replace": lambda stream, lower, upper, blob: stream[:lower] + blob + stream[upper:],
    "overwrite": lambda stream, lower, _, blob: stream[:lower] + blob + stream[lower + len(blob) :],
    "insert": lambda stream, lower, _, blob: stream[:lower] + blob + stream[lower:],
    "remove": lambda stream, lower, upper, _: stream[:lower] + stream[upper:],
    "repeat": lambda stream, lower, upper, _: stream[:upper] + stream[lower:upper] + stream[upper:],
    "swap": lambda stream, lower, upper, _: stream[upper:] + stream[lower:upper] + stream[:lower],
    "cut": lambda stream, _, upper, __: stream[:upper],
}
TELLING = (b"\xff" * 4, b"\0" * 5, b"\xff\xff\xff\x7f", b"\0\x10\0\0", b"lnst\x01c", b"lnst\x01s")


@st.composite
def changed(draw: st.DrawFn, stream: bytes) -> bytes:
    """The stream with up to five changes."""
    for _ in range(draw(st.integers(0, 5))):
        lower, upper = sorted(draw(st.tuples(*[st.integers(0, len(stream))] * 2)))
        blob = draw(st.binary(max_size=8) | st.sampled_from(TELLING))
        stream = CHANGES[draw(st.sampled_from(sorted(CHANGES)))](stream, lower, upper, blob)
    return stream


frames = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), min_size=1, max_size=6)
streams = frames.map(lambda listed: b"".join(frame(kind, body) for kind, body in listed)).flatmap(changed)
sizes = st.integers(1, 64)


@many
@given(streams, sizes)
def test_reader_gives_frames_or_refuses_and_holds_no_more_than_the_bound(stream: bytes, size: int) -> None:
    reader = FrameReader(max_frame_bytes=BOUND)
    with suppress(FrameTooLarge):
        for at in range(0, len(stream), size):
            reader.feed(stream[at : at + size])
            assert reader.buffered_bytes <= BOUND + HEADER_BYTES
            assert 0 <= reader.missing <= BOUND
    taken = sum(HEADER_BYTES + len(body) for _, body in reader.frames)
    assert b"".join(frame(kind, body) for kind, body in reader.frames) == stream[:taken]


def handshakes() -> tuple[Handshake, Handshake]:
    client = Handshake(SECRET, "client", is_client=True, nonce=b"c" * NONCE_BYTES)
    return client, Handshake(SECRET, "server", is_client=False, nonce=b"s" * NONCE_BYTES)


def conversation() -> tuple[bytes, bytes]:
    """All that a client and a server say in a good handshake."""
    client, server = handshakes()
    hello = client.receive(b"")
    answer = server.receive(hello)
    return hello + client.receive(answer), answer


CLIENT_SAYS, SERVER_SAYS = conversation()


@many
@pytest.mark.parametrize(("listener", "good"), [(0, SERVER_SAYS), (1, CLIENT_SAYS)], ids=["client", "server"])
@given(data=st.data(), size=sizes)
def test_handshake_is_done_only_by_the_good_stream_and_else_refuses_or_waits(
    listener: int, good: bytes, data: st.DataObject, size: int
) -> None:
    handshake = handshakes()[listener]
    said = data.draw(changed(good))
    given_bytes = 0
    with suppress(HandshakeRefused):
        for at in range(0, len(said), size):
            if handshake.done:
                break
            given_bytes = at + size
            handshake.receive(said[at : at + size])
            assert handshake.buffered_bytes <= MAX_INTRODUCTION_BYTES
    assert handshake.done == said.startswith(good)
    if handshake.done:
        assert handshake.leftover == said[len(good) : given_bytes]


@live
@given(saying=changed(CLIENT_SAYS) | changed(SERVER_SAYS) | streams, closes=st.booleans())
def test_live_loop_drops_every_stranger_and_hears_none(
    make_side: SideMaker, tmp_path: Path, saying: bytes, closes: bool
) -> None:
    """No stranger gets in, since the proof in the recorded conversation is for another nonce."""
    server = make_side("server", handshake_deadline_s=0.005)
    path = tmp_path / "socket"
    address = server.loop.listen(f"unix:{path}")
    with dialled(address) as stranger:
        stranger.sendall(saying)
        if closes:
            stranger.close()
        until(lambda: server.loop.strangers_dropped, server)
    assert server.opened == server.frames == server.lost == []
    server.loop.close()


@live
@given(stream=streams)
def test_live_loop_survives_a_member_who_sends_nonsense(make_side: SideMaker, tmp_path: Path, stream: bytes) -> None:
    server, client = make_side("server", max_frame_bytes=BOUND), make_side("client")
    address = server.loop.listen(f"unix:{tmp_path}/socket")
    opened(server, client, address)
    with proved(server, address) as member:
        member.sendall(stream)
    until(lambda: server.lost, server)
    heard = b"".join(frame(kind, body) for kind, body in server.frames)
    assert stream.startswith(heard)
    client.opened[0].send(1, b"undisturbed")
    until(lambda: server.frames[-1:] == [(1, b"undisturbed")], server, client)
    server.loop.close()
    client.loop.close()
