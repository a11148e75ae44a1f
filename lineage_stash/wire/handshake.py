"""The handshake: both sides prove that they know the secret, before either believes a word. No I/O.

Each side says hello: magic, version, role, a nonce and its introduction. The server adds its proof to its hello, and
the client answers with its own. A proof is an HMAC-SHA256 over a label of the role and both hellos, so it holds for
these two nonces, this version, these introductions and one direction only: a recorded handshake proves nothing to a
new nonce, and our own messages sent back to us prove nothing either.

Rules:
- What does not begin as a hello of this version from the other role is refused at the first byte that differs.
- At most one introduction (512 bytes) is held before the other side's proof has been checked.
- Proofs are compared in constant time. After a refusal everything is refused.

It keeps out strangers, not someone who sits between the two and alters what follows the handshake: that takes TLS. The
secret must be random and long, since the server shows its proof to whoever says hello. Nonces are drawn by the caller,
fresh for every handshake.
"""

import hmac
from collections.abc import Callable
from struct import Struct

MAGIC = b"lnst"
VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
MAX_INTRODUCTION_BYTES = 512

_HEAD = Struct(f"<4sBc{NONCE_BYTES}sH")
_CLIENT, _SERVER = b"c", b"s"
_LABELS = {_CLIENT: b"lineage-stash: proof of the client", _SERVER: b"lineage-stash: proof of the server"}
_REFUSALS = ("not this protocol",) * len(MAGIC) + ("another version of this protocol", "our own role")


class HandshakeRefused(Exception):
    """The other side did not prove that it knows the secret; says why."""


class Handshake:
    """One side of one handshake; a client begins with `receive(b"")`."""

    def __init__(self, secret: bytes, introduction: str, *, is_client: bool, nonce: bytes) -> None:
        said = introduction.encode()
        if not secret:
            raise ValueError("an empty secret proves nothing")
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        if len(said) > MAX_INTRODUCTION_BYTES:
            raise ValueError(f"an introduction has at most {MAX_INTRODUCTION_BYTES} bytes, not {len(said)}")
        self.done = False
        self.peer_introduction = ""
        self.leftover = b""
        self._secret = secret
        self._is_client = is_client
        self._own_role, self._peer_role = (_CLIENT, _SERVER) if is_client else (_SERVER, _CLIENT)
        self._hello = _HEAD.pack(MAGIC, VERSION, self._own_role, nonce, len(said)) + said
        self._peer_hello = b""
        self._outgoing = self._hello if is_client else b""
        self._part = bytearray()
        self._part_bytes = _HEAD.size
        self._take: Callable[[bytes], None] = self._take_head
        self._refusal: HandshakeRefused | None = None

    @property
    def buffered_bytes(self) -> int:
        """How many bytes are held that are not understood yet."""
        return len(self._part)

    def receive(self, data: bytes) -> bytes:
        """Take in what the other side said, and return what to say to it."""
        if self._refusal is not None:
            raise self._refusal
        if self.done:
            raise ValueError("what follows the handshake is not for the handshake")
        try:
            self._advance(data)
        except HandshakeRefused as refusal:
            self._refusal = refusal
            raise
        outgoing, self._outgoing = self._outgoing, b""
        return outgoing

    def _advance(self, data: bytes) -> None:
        position = 0
        while not self.done:
            upper = position + self._part_bytes - len(self._part)
            self._part += data[position:upper]
            position = upper
            if self._take == self._take_head:
                self._check_beginning()
            if len(self._part) < self._part_bytes:
                return
            part = bytes(self._part)
            self._part.clear()
            self._take(part)
        self.leftover = data[position:]

    def _check_beginning(self) -> None:
        expected = MAGIC + bytes([VERSION]) + self._peer_role
        for said, wanted, refusal in zip(self._part, expected, _REFUSALS, strict=False):
            if said != wanted:
                raise HandshakeRefused(refusal)

    def _take_head(self, head: bytes) -> None:
        *_, introduction_bytes = _HEAD.unpack(head)
        if introduction_bytes > MAX_INTRODUCTION_BYTES:
            raise HandshakeRefused(f"an introduction of {introduction_bytes} bytes")
        self._peer_hello = head
        self._part_bytes = introduction_bytes
        self._take = self._take_introduction

    def _take_introduction(self, introduction: bytes) -> None:
        try:
            self.peer_introduction = introduction.decode()
        except UnicodeDecodeError as error:
            raise HandshakeRefused("an introduction that is no text") from error
        self._peer_hello += introduction
        self._part_bytes = PROOF_BYTES
        self._take = self._take_proof
        if not self._is_client:
            self._outgoing += self._hello + self._proof(self._own_role)

    def _take_proof(self, proof: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(self._peer_role)):
            raise HandshakeRefused("another secret")
        self.done = True
        if self._is_client:
            self._outgoing += self._proof(self._own_role)

    def _proof(self, role: bytes) -> bytes:
        """What only someone who knows the secret can say in this role; a hello tells its own length."""
        first, second = (self._hello, self._peer_hello) if self._is_client else (self._peer_hello, self._hello)
        return hmac.digest(self._secret, _LABELS[role] + first + second, "sha256")
