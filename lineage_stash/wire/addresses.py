"""Addresses, and the sockets made for them: `unix:/path` on one machine, `tcp:host:port` between machines.

Every socket made here is non-blocking and close-on-exec. Hosts should be numbers: a name is looked up, and that blocks.
Unix sockets can be used by their owner only, and their path must be free when one is made.
"""

import os
import socket
from typing import NamedTuple

SOCKET_BUFFER_BYTES = 1 << 20
"""What is asked for on unix sockets: a frame of this size then costs few wakeups. The kernel may grant less."""

DEAD_AFTER_MS = 2_000
"""TCP_USER_TIMEOUT: how long what was sent may stay unacknowledged. A machine that lost its power says nothing, and the
kernel would repeat itself for a quarter of an hour; two seconds span a few repetitions on any network of a cluster.
The kernel counts as silent also a process that lives and does not read while its buffer is full: who holds a loop must
poll it more often than this, or give the loop more time."""

KEEPALIVE_S = 1
"""How often a silent TCP connection is tried, since the kernel's two hours would leave an idle one in the dark."""

BACKLOG = 4096
"""Connections that wait to be accepted; the kernel takes the smaller of this and its own bound."""


class Endpoint(NamedTuple):
    """A parsed address, as the socket module wants it."""

    family: socket.AddressFamily
    target: str | tuple[str, int]

    @property
    def is_tcp(self) -> bool:
        return self.family != socket.AF_UNIX


def parse(address: str) -> Endpoint:
    """The endpoint that an address names; `ValueError` for an address that is none, `OSError` for an unknown host."""
    scheme, _, rest = address.partition(":")
    host, _, port = rest.rpartition(":")
    if scheme == "unix" and rest:
        return Endpoint(socket.AF_UNIX, rest)
    if scheme == "tcp" and host and port.isdecimal():
        family, *_, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        return Endpoint(family, (str(target[0]), int(target[1])))
    raise ValueError(f"{address!r} is no address: say unix:/path or tcp:host:port")


def listening(endpoint: Endpoint) -> socket.socket:
    """A socket that listens there."""
    listener = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        if endpoint.is_tcp:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(endpoint.target)
        if isinstance(endpoint.target, str):
            # Nobody can connect before `listen`, so there is no moment at which others could.
            os.chmod(endpoint.target, 0o600)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def actual(listener: socket.socket) -> str:
    """The address at which a listening socket is reached."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"tcp:{host}:{name[1]}"


def unconnected(endpoint: Endpoint, dead_after_ms: int) -> socket.socket:
    """A socket that can be connected to there."""
    return prepared(socket.socket(endpoint.family, socket.SOCK_STREAM), dead_after_ms)


def prepared(connection: socket.socket, dead_after_ms: int) -> socket.socket:
    """The same socket with the options of a connection."""
    connection.setblocking(False)
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        return connection
    # The buffers of TCP are left to the kernel: it grows them with the distance, and stops doing so once they are set.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_USER_TIMEOUT, dead_after_ms),
        (socket.TCP_KEEPIDLE, KEEPALIVE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_S),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection
