"""Whoever watches a descriptor is told what happened to it, and not what happened to one that had its number before."""

import os
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from lineage_stash.wire.poller import Poller


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


class ReadyPair:
    """A socket that can be read, and the one that it is read from."""

    def __init__(self, fd: int | None = None) -> None:
        self.near, self.far = socket.socketpair()
        if fd is not None and self.near.fileno() != fd:
            os.dup2(self.near.fileno(), fd)
            self.near.close()
            self.near = socket.socket(fileno=fd)
        self.far.send(b"x")

    @property
    def fd(self) -> int:
        return self.near.fileno()

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def pairs() -> Iterator[list[ReadyPair]]:
    made = [ReadyPair(), ReadyPair()]
    yield made
    for pair in made:
        pair.close()


def replaced(poller: Poller, pairs: list[ReadyPair], told: list[Any]) -> None:
    """Discard the second pair, and watch another one that has its number."""
    fd = pairs[1].fd
    poller.discard(pairs[1].near)
    pairs[1].far.close()
    pairs[1] = ReadyPair(fd)
    poller.watch(fd, select.EPOLLIN, lambda mask: told.append(("new", mask)))


def test_handler_is_told_what_happened_until_it_stops_watching(poller: Poller, pairs: list[ReadyPair]) -> None:
    told: list[int] = []
    poller.watch(pairs[0].fd, select.EPOLLIN, told.append)
    poller.tell(poller.wait(1))
    poller.change(pairs[0].fd, select.EPOLLIN | select.EPOLLOUT)
    poller.tell(poller.wait(1))
    poller.unwatch(pairs[0].fd)
    poller.unwatch(pairs[0].fd)
    poller.tell(poller.wait(0))
    assert told == [select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT]


def test_number_that_is_used_again_within_a_turn_is_told_in_the_next(poller: Poller, pairs: list[ReadyPair]) -> None:
    told: list[Any] = []

    def replace_second(mask: int) -> None:
        told.append(("first", mask))
        poller.unwatch(pairs[0].fd)
        replaced(poller, pairs, told)

    poller.watch(pairs[0].fd, select.EPOLLIN, replace_second)
    poller.watch(pairs[1].fd, select.EPOLLIN, lambda mask: told.append(("old", mask)))
    poller.tell(poller.wait(1))
    assert told[-1] == ("first", select.EPOLLIN)
    poller.tell(poller.wait(1))
    assert told[-1] == ("new", select.EPOLLIN)


def test_number_that_is_used_again_while_another_thread_waits_is_told_in_the_next_turn(
    poller: Poller, pairs: list[ReadyPair], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    poller.watch(pairs[1].fd, select.EPOLLIN, lambda mask: told.append(("old", mask)))
    epoll = poller._epoll

    class Slow:
        """An epoll whose caller comes back only when someone else has been at work."""

        def poll(self, timeout_s: float, count: int) -> list[tuple[int, int]]:
            events = epoll.poll(timeout_s, count)
            monkeypatch.undo()
            replaced(poller, pairs, told)
            return events

    monkeypatch.setattr(poller, "_epoll", Slow())
    poller.tell(poller.wait(1))
    assert told == []
    poller.tell(poller.wait(1))
    assert told == [("new", select.EPOLLIN)]


def test_exception_of_a_handler_leaves_the_others_to_the_next_turn(poller: Poller, pairs: list[ReadyPair]) -> None:
    told: list[int] = []

    def fail(_: int) -> None:
        poller.unwatch(pairs[0].fd)
        raise RuntimeError

    poller.watch(pairs[0].fd, select.EPOLLIN, fail)
    poller.watch(pairs[1].fd, select.EPOLLIN, told.append)
    with pytest.raises(RuntimeError):
        poller.tell(poller.wait(1))
    told.clear()
    poller.tell(poller.wait(1))
    assert told == [select.EPOLLIN]


def test_discarded_socket_is_over_even_where_someone_else_holds_it(poller: Poller, pairs: list[ReadyPair]) -> None:
    held = os.dup(pairs[0].fd)
    try:
        poller.watch(pairs[0].fd, select.EPOLLIN, lambda _: None)
        poller.discard(pairs[0].near)
        pairs[0].far.settimeout(10)
        assert pairs[0].far.recv(1) == b""
    finally:
        os.close(held)
