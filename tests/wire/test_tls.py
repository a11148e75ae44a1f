"""Over TLS the same connections work, and who has no certificate of the authority is dropped before a word is heard."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lineage_stash.wire.tls import TlsContexts, contexts_from_files
from tests.wire.conftest import SideMaker
from tests.wire.sides import OTHER_SECRET, dialled, opened, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")

ANYWHERE = "tcp:127.0.0.1:0"


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def authority_in(folder: Path) -> Path:
    """A new authority, as a folder with `ca.pem`, and `own.pem` and `own.key` that it has signed."""
    folder.mkdir()
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-subj", "/CN=ca")
    openssl("req", *curve, "-keyout", folder / "own.key", "-out", folder / "own.csr", "-subj", "/CN=process")
    signed = ("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial", "-out", folder / "own.pem")
    openssl("x509", "-req", "-in", folder / "own.csr", "-days", "2", *signed)
    return folder


def contexts_in(folder: Path, trusted: Path | None = None) -> TlsContexts:
    ca = (trusted or folder) / "ca.pem"
    return contexts_from_files(str(folder / "own.pem"), str(folder / "own.key"), str(ca))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return authority_in(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return authority_in(tmp_path_factory.mktemp("tls") / "others")


def test_frames_of_all_sizes_arrive_in_order_both_ways(make_side: SideMaker, ours: Path) -> None:
    tls = contexts_in(ours)
    server, client = make_side("server", tls=tls), make_side("client", tls=tls)
    address = server.loop.listen(ANYWHERE)
    connection = client.loop.connect(address)
    early = [b"early", b"early" * 100_000]
    for body in early:
        connection.send(1, body)
    until(lambda: connection.is_open and server.opened, server, client)
    assert (connection.introduction, server.opened[0].introduction) == ("server", "client")
    large = os.urandom(1 << 20) * 10
    bodies = [b"", b"small", large, *(b"%d" % number for number in range(2000)), b"last"]
    for body in bodies:
        connection.send(1, body)
        server.opened[0].send(2, (body, b"!"))
    assert connection.queued_bytes > 0
    until(lambda: len(server.frames) == len(bodies) + 2 and len(client.frames) == len(bodies), server, client)
    assert server.bodies == early + bodies
    assert client.bodies == [body + b"!" for body in bodies]
    assert connection.queued_bytes == 0


def test_bytes_on_the_way_are_encrypted(make_side: SideMaker, ours: Path) -> None:
    client = make_side("a name that can be read", tls=contexts_in(ours))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client.loop.connect(f"tcp:127.0.0.1:{listener.getsockname()[1]}")
        client.loop.poll(1)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(4096)[:2] == b"\x16\x03"


def test_close_is_told_on_both_sides(make_side: SideMaker, ours: Path) -> None:
    tls = contexts_in(ours)
    server, client = make_side("server", tls=tls), make_side("client", tls=tls)
    theirs, connection = opened(server, client, server.loop.listen(ANYWHERE))
    connection.send(1, b"last words")
    connection.close("enough")
    until(lambda: client.lost and server.lost, server, client)
    assert client.lost == [(connection, "enough")]
    assert server.lost == [(theirs, "closed by the other side")]
    assert server.bodies == [b"last words"]


def test_unix_sockets_stay_plain(make_side: SideMaker, ours: Path, tmp_path: Path) -> None:
    server, client = make_side("server", tls=contexts_in(ours)), make_side("client")
    opened(server, client, server.loop.listen(f"unix:{tmp_path}/socket"))


def test_certificate_without_the_secret_is_refused(make_side: SideMaker, ours: Path) -> None:
    tls = contexts_in(ours)
    server, client = make_side("server", tls=tls), make_side("client", OTHER_SECRET, tls=tls)
    client.loop.connect(server.loop.listen(ANYWHERE))
    until(lambda: client.lost and server.loop.strangers_dropped, server, client)
    assert client.reasons == ["refused: another secret"]
    assert server.opened == []


def test_plain_client_is_dropped(make_side: SideMaker, ours: Path) -> None:
    server, plain = make_side("server", tls=contexts_in(ours)), make_side("plain")
    plain.loop.connect(server.loop.listen(ANYWHERE))
    until(lambda: plain.lost and server.loop.strangers_dropped, server, plain)
    assert plain.reasons[0].startswith("refused: ")
    assert server.opened == server.lost == []


def test_client_of_another_authority_is_dropped(make_side: SideMaker, ours: Path, others: Path) -> None:
    server = make_side("server", tls=contexts_in(ours))
    client = make_side("client", tls=contexts_in(others, trusted=ours))
    client.loop.connect(server.loop.listen(ANYWHERE)).send(1, b"nobody gets this")
    until(lambda: client.lost and server.loop.strangers_dropped, server, client)
    assert client.reasons[0].startswith("refused: TLS failed: ")  # the server's alert says why
    assert server.opened == server.frames == []


def test_server_of_another_authority_is_refused(make_side: SideMaker, ours: Path, others: Path) -> None:
    server = make_side("server", tls=contexts_in(others, trusted=ours))
    client = make_side("client", tls=contexts_in(ours))
    client.loop.connect(server.loop.listen(ANYWHERE))
    until(lambda: client.lost and server.loop.strangers_dropped, server, client)
    assert client.reasons[0].startswith("refused: TLS failed")
    assert client.opened == []


def test_client_without_a_certificate_is_dropped(
    make_side: SideMaker, ours: Path, keep: Callable[[socket.socket], socket.socket]
) -> None:
    server, client = make_side("server", tls=contexts_in(ours)), make_side("client", tls=contexts_in(ours))
    address = server.loop.listen(ANYWHERE)
    opened(server, client, address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(str(ours / "ca.pem"))
    stranger = keep(context.wrap_socket(keep(dialled(address)), do_handshake_on_connect=False))
    stranger.setblocking(False)

    def is_dropped() -> bool:
        with suppress(ssl.SSLError):
            stranger.do_handshake()
        return server.loop.strangers_dropped == 1

    until(is_dropped, server, client)
    client.opened[0].send(1, b"undisturbed")
    until(lambda: server.frames, server, client)


def test_silent_and_garbled_strangers_are_dropped(
    make_side: SideMaker, ours: Path, keep: Callable[[socket.socket], socket.socket]
) -> None:
    server = make_side("server", tls=contexts_in(ours), handshake_deadline_s=0.1)
    address = server.loop.listen(ANYWHERE)
    for saying in (b"", b"\x16\x03\x01", os.urandom(100_000), b"\x16\x03\x01\x40\x00" + b"\x01" * 0x4000):
        keep(dialled(address)).sendall(saying)
    until(lambda: server.loop.strangers_dropped == 4, server)
    assert server.opened == server.lost == []
