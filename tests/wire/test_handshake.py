"""Only who knows the secret gets through, and nothing that was said in another handshake helps anyone else."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_stash.wire.handshake import MAX_INTRODUCTION_BYTES, NONCE_BYTES, PROOF_BYTES, Handshake, HandshakeRefused
from tests.wire.sides import OTHER_SECRET, SECRET, quick


def client(introduction: str = "client", secret: bytes = SECRET, nonce: bytes = b"c" * NONCE_BYTES) -> Handshake:
    return Handshake(secret, introduction, is_client=True, nonce=nonce)


def server(introduction: str = "server", secret: bytes = SECRET, nonce: bytes = b"s" * NONCE_BYTES) -> Handshake:
    return Handshake(secret, introduction, is_client=False, nonce=nonce)


def fed_in_chunks(handshake: Handshake, data: bytes, size: int) -> bytes:
    return b"".join(handshake.receive(data[at : at + size]) for at in range(0, len(data), size))


@quick
@given(st.text(max_size=100), st.text(max_size=100), st.integers(1, 700))
def test_both_sides_learn_who_the_other_is_however_it_is_cut(one: str, other: str, size: int) -> None:
    ours, theirs = client(one), server(other)
    answer = fed_in_chunks(theirs, ours.receive(b""), size)
    proof = fed_in_chunks(ours, answer, size)
    assert fed_in_chunks(theirs, proof, size) == b""
    assert ours.done
    assert theirs.done
    assert (ours.peer_introduction, theirs.peer_introduction) == (other, one)
    assert ours.leftover == theirs.leftover == b""


def test_bytes_behind_the_handshake_are_left_over() -> None:
    ours, theirs = client(), server()
    proof = ours.receive(theirs.receive(ours.receive(b"")) + b"early frame")
    theirs.receive(proof + b"frames")
    assert ours.leftover == b"early frame"
    assert theirs.leftover == b"frames"


def test_client_refuses_a_server_with_another_secret_and_says_no_more() -> None:
    ours, theirs = client(), server(secret=OTHER_SECRET)
    with pytest.raises(HandshakeRefused, match="another secret"):
        ours.receive(theirs.receive(ours.receive(b"")))
    assert not ours.done


def test_server_refuses_a_client_with_another_secret() -> None:
    ours, theirs = client(secret=OTHER_SECRET), server()
    theirs.receive(ours.receive(b""))
    with pytest.raises(HandshakeRefused, match="another secret"):
        theirs.receive(b"p" * PROOF_BYTES)


def test_recorded_client_is_refused_by_a_server_with_a_new_nonce() -> None:
    ours, theirs = client(), server()
    hello = ours.receive(b"")
    proof = ours.receive(theirs.receive(hello))
    theirs.receive(proof)
    assert theirs.done
    later = server(nonce=b"t" * NONCE_BYTES)
    later.receive(hello)
    with pytest.raises(HandshakeRefused, match="another secret"):
        later.receive(proof)


def test_recorded_server_is_refused_by_a_client_with_a_new_nonce() -> None:
    recorded = server().receive(client().receive(b""))
    later = client(nonce=b"d" * NONCE_BYTES)
    later.receive(b"")
    with pytest.raises(HandshakeRefused, match="another secret"):
        later.receive(recorded)


@pytest.mark.parametrize("make", [client, server])
def test_own_messages_sent_back_are_refused(make: Callable[[], Handshake]) -> None:
    ours = make()
    said = ours.receive(b"") or ours.receive(client().receive(b""))
    again = make()
    again.receive(b"")
    with pytest.raises(HandshakeRefused, match="our own role"):
        again.receive(said)


def test_own_proof_under_the_name_of_the_other_role_is_refused() -> None:
    ours, theirs = client(), server()
    answer = theirs.receive(ours.receive(b""))
    with pytest.raises(HandshakeRefused, match="another secret"):
        theirs.receive(answer[-PROOF_BYTES:])


def test_changed_introduction_is_refused() -> None:
    ours, theirs = client("node 1"), server()
    theirs.receive(ours.receive(b"").replace(b"node 1", b"node 2"))
    with pytest.raises(HandshakeRefused):
        theirs.receive(ours.receive(server().receive(client("node 1").receive(b""))))


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        (b"G", "not this protocol"),
        (b"GET / HTTP/1.1\r\n", "not this protocol"),
        (b"lnsT", "not this protocol"),
        (b"\x16\x03\x01\x02\x00", "not this protocol"),
        (b"lnst\x00", "another version"),
        (b"lnst\x02", "another version"),
        (b"lnst\x01s", "our own role"),
        (b"lnst\x01c" + b"n" * NONCE_BYTES + (MAX_INTRODUCTION_BYTES + 1).to_bytes(2, "little"), "an introduction of"),
        (b"lnst\x01c" + b"n" * NONCE_BYTES + b"\x01\x00\xff", "no text"),
        (b"lnst\x01c" + b"n" * NONCE_BYTES + b"\x00\x00" + b"x" * 100_000, "another secret"),
    ],
)
def test_anything_else_is_refused_at_its_first_wrong_byte(said: bytes, refusal: str) -> None:
    theirs = server()
    with pytest.raises(HandshakeRefused, match=refusal):
        theirs.receive(said)
    assert theirs.buffered_bytes <= MAX_INTRODUCTION_BYTES
    with pytest.raises(HandshakeRefused, match=refusal):
        theirs.receive(client().receive(b""))


def test_no_more_than_one_introduction_is_held_before_the_proof() -> None:
    theirs = server()
    hello = client("i" * MAX_INTRODUCTION_BYTES).receive(b"")
    for at in range(len(hello)):
        theirs.receive(hello[at : at + 1])
        assert theirs.buffered_bytes <= MAX_INTRODUCTION_BYTES


@pytest.mark.parametrize(
    ("secret", "introduction", "nonce"),
    [
        (b"", "name", b"n" * NONCE_BYTES),
        (SECRET, "é" * 257, b"n" * NONCE_BYTES),
        (SECRET, "name", b"short"),
    ],
)
def test_handshake_that_could_not_work_is_not_begun(secret: bytes, introduction: str, nonce: bytes) -> None:
    with pytest.raises(ValueError, match=r"secret|introduction|nonce"):
        Handshake(secret, introduction, is_client=True, nonce=nonce)
