"""What a process counts of the lineage that leaves it."""

from lineage_stash.core.batch import Batch, Range
from lineage_stash.core.channel import Message
from lineage_stash.core.effects import AppendToStore, SendMessage
from lineage_stash.core.entry import Read
from lineage_stash.core.ids import Incarnation, Index, PeerId, Round, Seqno
from lineage_stash.on_ray.tally import MEASURED_EVERY, Sampled, Tallied, flushed_bytes_of, forwarded_bytes_of


def reads(count: int, each_bytes: int) -> Range:
    return Range(PeerId("a"), Incarnation(0), Index(0), (Read(b"x" * each_bytes, 0, ()),) * count)


def message(*ranges: Range) -> SendMessage:
    peers = (PeerId("a"), Incarnation(0), PeerId("b"), Incarnation(0))
    said = (Round(0), 0, 0, None, Seqno(0), (b"call" * 100,), Seqno(0), (), Seqno(0), Seqno(0))
    return SendMessage(Message(*peers, *said, Batch(ranges, (), ())))


def test_bytes_of_a_message_are_those_of_its_lineage_alone() -> None:
    assert forwarded_bytes_of(message()) == 0
    of_one, of_two = forwarded_bytes_of(message(reads(1, 1000))), forwarded_bytes_of(message(reads(2, 1000)))
    assert 1000 < of_one < 1050
    assert 2000 < of_two < 2 * of_one


def test_bytes_of_a_flush_are_what_a_replica_keeps() -> None:
    assert 3000 < flushed_bytes_of(AppendToStore((reads(3, 1000),), ())) < 3100


def test_entries_are_all_counted_and_bytes_measured_of_some() -> None:
    measured: list[int] = []

    def measure(length: int) -> int:
        measured.append(length)
        return 10 * length

    sampled = Sampled(measure)
    for _ in range(3 * MEASURED_EVERY):
        sampled.count((reads(2, 1), reads(3, 1)), 5)
    assert len(measured) == 3
    assert sampled.entries == 15 * MEASURED_EVERY
    assert sampled.bytes == 10 * sampled.entries
    assert Sampled(measure).bytes == 0


def test_tallies_add_up() -> None:
    assert Tallied(True, 1, 2, 3, 4, 5) + Tallied(False, 10, 20, 30, 40, 50) == Tallied(True, 11, 22, 33, 44, 55)
