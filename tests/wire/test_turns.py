"""A turn of the loop: what is posted runs soon, timers when they are due, and several threads may take turns."""

import os
import threading
from time import monotonic

import pytest

from tests.wire.conftest import SideMaker
from tests.wire.sides import until


class Fault(Exception):
    """What a callback raises in these tests."""


def test_posted_action_wakes_a_sleeping_poll(make_side: SideMaker) -> None:
    side = make_side("side")
    ran: list[int] = []

    def post_when_it_sleeps() -> None:
        while not side.loop.sleepers:
            pass
        side.loop.post(lambda: ran.append(threading.get_ident()))

    thread = threading.Thread(target=post_when_it_sleeps)
    thread.start()
    began = monotonic()
    assert side.loop.poll(60)
    thread.join()
    assert ran == [threading.get_ident()]
    assert monotonic() - began < 30


def test_wake_ends_this_poll_or_the_next(make_side: SideMaker) -> None:
    side = make_side("side")
    side.loop.wake()
    began = monotonic()
    assert side.loop.poll(60)
    assert not side.loop.poll(0)
    assert monotonic() - began < 30


def test_many_posts_of_many_threads_all_run(make_side: SideMaker) -> None:
    side = make_side("side")
    ran: list[int] = []

    def post_many() -> None:
        for number in range(500):
            side.loop.post(lambda number=number: ran.append(number))

    threads = [threading.Thread(target=post_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = monotonic() + 20
    while len(ran) < 2000:
        assert side.loop.poll(5) or monotonic() < deadline
    for thread in threads:
        thread.join()


def test_action_that_posts_runs_again_in_the_next_turn(make_side: SideMaker) -> None:
    side = make_side("side")
    ran: list[int] = []

    def again() -> None:
        ran.append(1)
        side.loop.post(again)

    side.loop.post(again)
    side.loop.poll(0)
    assert len(ran) == 1
    side.loop.poll(60)
    assert len(ran) == 2


def test_exception_of_a_posted_action_leaves_the_others_to_the_next_poll(make_side: SideMaker) -> None:
    side = make_side("side")
    ran: list[int] = []

    def fail() -> None:
        raise Fault

    side.loop.post(fail)
    side.loop.post(lambda: ran.append(1))
    with pytest.raises(Fault):
        side.loop.poll(0)
    side.loop.poll(60)
    assert ran == [1]


def test_timers_run_in_order_and_end_the_wait(make_side: SideMaker) -> None:
    side = make_side("side")
    ran: list[str] = []
    side.loop.later(0.02, lambda: ran.append("second"))
    side.loop.later(0.01, lambda: ran.append("first"))
    side.loop.later(0.015, lambda: ran.append("never")).cancel()
    began = monotonic()
    while len(ran) < 2:
        side.loop.poll(60)
    assert ran == ["first", "second"]
    assert 0.02 <= monotonic() - began < 30


def test_reader_is_told_until_it_is_removed(make_side: SideMaker) -> None:
    side = make_side("side")
    reader, writer = os.pipe()
    try:
        read: list[bytes] = []
        side.loop.add_reader(reader, lambda: read.append(os.read(reader, 100)))
        os.write(writer, b"one")
        until(lambda: read, side)
        side.loop.remove_reader(reader)
        os.write(writer, b"two")
        assert not side.loop.poll(0)
        assert read == [b"one"]
    finally:
        os.close(reader)
        os.close(writer)


def test_two_threads_with_a_loop_each_answer_each_other(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    server.on_frame = lambda connection, kind, body: connection.send(kind, body)
    address = server.loop.listen(anywhere)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            server.loop.poll(60)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ours = client.loop.connect(address)
        for number in range(1000):
            ours.send(1, b"%d" % number)
            until(lambda number=number: len(client.frames) > number, client)
    finally:
        stop.set()
        server.loop.wake()
        thread.join()
    assert client.bodies == [b"%d" % number for number in range(1000)]


def test_several_threads_may_poll_one_loop_while_connections_come_and_go(make_side: SideMaker, anywhere: str) -> None:
    server, client = make_side("server"), make_side("client")
    server.on_frame = lambda connection, kind, body: connection.send(kind, body)
    address = server.loop.listen(anywhere)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            server.loop.poll(60)
        server.loop.wake()

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        lasting = client.loop.connect(address)
        for number in range(200):
            passing = client.loop.connect(address)
            for connection in (passing, lasting):
                connection.send(1, b"%d" % number)
            until(lambda number=number: len(client.frames) == 2 * (number + 1), client)
            passing.close("passing")
    finally:
        stop.set()
        server.loop.wake()
        for thread in threads:
            thread.join()
    until(lambda: len(server.lost) == len(client.lost) == 200, server, client)
    assert lasting.is_open
    assert server.loop.strangers_dropped == 0
