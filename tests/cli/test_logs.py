"""Logs and causes in words, from files that a store has left; what is damaged, truncated or missing is one line."""

import time
from pathlib import Path

import pytest

from lineage_stash import codec
from lineage_stash.cli import causes
from lineage_stash.cli.logs import LogView, read_log
from lineage_stash.cli.records import read
from lineage_stash.cli.sources import ClusterSource, FolderSource, NotFound, just_before
from lineage_stash.cli.words import call_in_words, partition_in, reading_in_words, value_in_words
from lineage_stash.core.batch import Range
from lineage_stash.core.checkpoint import CallsTo, Checkpoint
from lineage_stash.core.entry import Entry, Got, Ran, Read, Waited
from lineage_stash.core.ids import FIRST_INCARNATION, Incarnation, Index, PeerId, Seqno
from lineage_stash.core.parcels import wrap
from lineage_stash.on_ray import payloads
from lineage_stash.store.contract import Append, PutCheckpoint, Truncate
from lineage_stash.store.disk import DiskReplica
from lineage_stash.store.looking import FolderView
from tests.cli.listeners import listening, serving
from tests.cli.planes import ALIVE, NODE, MemoryPlane

FRONT, STORE, DRIVER = PeerId("driver-1/Front-1"), PeerId("driver-1/Store-1"), PeerId("driver-1")
FIRST = ((FIRST_INCARNATION, Index(0)),)


def ran(caller: PeerId, seqno: int, payload: bytes | None = None, needs: tuple[tuple[PeerId, int], ...] = ()) -> Ran:
    return Ran(caller, Seqno(seqno), payload, 0, tuple((peer, Index(upper)) for peer, upper in needs))


class Disk:
    """A replica's folder that is written to, and closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, peer: PeerId, *entries: Entry, lower: int = 0, life: int = 0, span: int = 50) -> None:
        replica = DiskReplica(self.folder, identity="store/replica-0")
        for start in range(0, len(entries), span):
            piece = Range(peer, Incarnation(life), Index(lower + start), tuple(entries[start : start + span]))
            packed = codec.pack_span(piece)
            body = packed.body if isinstance(packed.body, bytes) else b"".join(packed.body)
            replica.handle(codec.encode(Append((packed._replace(body=body),), (), (), (), False)))
        replica.close()

    def checkpoint(self, peer: PeerId, upper: int, *payloads_kept: bytes, callee: PeerId = STORE) -> None:
        replica = DiskReplica(self.folder, identity="store/replica-0")
        calls = CallsTo(Seqno(0), Seqno(len(payloads_kept)), payloads_kept, Seqno(0), (), ())
        made = Checkpoint(peer, FIRST_INCARNATION, Index(upper), b"\0state", 0, ((callee, calls),), (), (), 0, False)
        replica.handle(codec.encode(PutCheckpoint(made)))
        replica.handle(codec.encode(Truncate(peer, FIRST, Index(upper))))
        replica.close()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "replica-0")


def add(number: int) -> bytes:
    return payloads.pack_call("add", (number,), {})


def test_folder_is_left_as_it_was_by_whoever_looks(disk: Disk) -> None:
    disk.write(STORE, *[ran(DRIVER, number, add(number)) for number in range(120)])
    before = {path.name: path.read_bytes() for path in disk.folder.iterdir()}
    view = FolderView(disk.folder)
    assert view.replica.logs[STORE].upper == 120
    view.close()
    assert {path.name: path.read_bytes() for path in disk.folder.iterdir()} == before


def test_tail_and_range_of_a_log_are_told_in_words(disk: Disk) -> None:
    said = payloads.pack_value("yes")
    disk.write(STORE, *[ran(DRIVER, number, add(number)) for number in range(200)], Read(said, 0, ()),
               Waited((0, 2), 0, ()))  # fmt: skip
    source = FolderSource([disk.folder.parent])
    part = read_log(source, STORE, tail=3)
    assert [entry.at for entry in part.entries] == [199, 200, 201]
    assert [entry.words for entry in part.entries] == [
        "ran add(199), call #199 of driver-1", "observed 'yes'", "waited: 0, 2 had come",
    ]  # fmt: skip
    assert (part.base, part.upper, part.entries[0].method) == (0, 202, "add")
    assert [entry.at for entry in read_log(source, STORE, lower=60, upper=63).entries] == [60, 61, 62]


def test_only_the_bodies_that_are_asked_for_are_decoded(disk: Disk) -> None:
    disk.write(STORE, *[ran(DRIVER, number, add(number)) for number in range(10_000)])
    view = LogView(FolderSource([disk.folder]), STORE)
    assert view.find_call(DRIVER, 7777) == 7777
    assert len(view._decoded) < 20
    assert view.call_at(5000) == 5000


def test_payload_that_the_log_has_not_comes_from_the_checkpoint_of_its_caller(disk: Disk) -> None:
    disk.write(STORE, ran(FRONT, 0), ran(FRONT, 1), ran(FRONT, 2))
    disk.write(FRONT, ran(DRIVER, 0, add(0)))
    disk.checkpoint(FRONT, 1, add(5), add(6))
    words = [entry.words for entry in read_log(FolderSource([disk.folder]), STORE).entries]
    assert words[:2] == ["ran add(5), call #0 of driver-1/Front-1", "ran add(6), call #1 of driver-1/Front-1"]
    assert words[2] == "ran ?, call #2 of driver-1/Front-1"


def test_prefix_that_a_checkpoint_covers_is_told(disk: Disk) -> None:
    disk.write(STORE, *[ran(DRIVER, number, add(number)) for number in range(20)])
    disk.checkpoint(STORE, 15)
    source = FolderSource([disk.folder])
    part = read_log(source, STORE, lower=0)
    assert (part.base, part.checkpoints, part.entries[0].at) == (15, (15,), 15)
    with pytest.raises(NotFound, match="covers it"):
        causes.past_of(source, f"{STORE}:3")
    with pytest.raises(NotFound, match="a checkpoint at index 15"):
        causes.past_of(source, f"{DRIVER}->{STORE}#3")


def test_missing_peer_damaged_file_and_empty_folder_are_one_line_each(disk: Disk, tmp_path: Path) -> None:
    disk.write(STORE, *[ran(DRIVER, number, add(number)) for number in range(20)])
    with pytest.raises(NotFound, match=r"there is no peer Stor in .*: there are driver-1/Store-1"):
        FolderSource([disk.folder]).resolve("Stor")
    assert FolderSource([disk.folder]).resolve("Store-1") == STORE
    with pytest.raises(NotFound, match="there is no store in"):
        FolderSource([tmp_path / "nowhere"])
    (segment,) = disk.folder.glob("*.segment")
    content = bytearray(segment.read_bytes())
    content[30] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(NotFound, match="is damaged at byte 0") as told:
        FolderSource([disk.folder])
    assert "\n" not in str(told.value)


def test_body_that_is_damaged_is_one_line(disk: Disk) -> None:
    disk.write(STORE, *[ran(DRIVER, number, add(number)) for number in range(20)])
    disk.write(FRONT, ran(DRIVER, 0, add(0)))
    (segment,) = disk.folder.glob("*.segment")
    content = bytearray(segment.read_bytes())
    content[content.index(b"add")] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(NotFound, match="is damaged: its checksum does not match"):
        read_log(FolderSource([disk.folder]), STORE)


def test_replica_that_is_damaged_is_left_out_while_there_is_another(disk: Disk, tmp_path: Path) -> None:
    disk.write(STORE, ran(DRIVER, 0, add(0)))
    other = Disk(tmp_path / "replica-1")
    other.write(STORE, ran(DRIVER, 0, add(0)), ran(DRIVER, 1, add(1)))
    source = FolderSource([tmp_path])
    assert read_log(source, STORE).upper == 2, "the one that has more"
    (segment,) = disk.folder.glob("*.segment")
    segment.write_bytes(b"nonsense")
    source = FolderSource([tmp_path])
    assert len(source.notes) == 1
    assert read_log(source, STORE).upper == 2


def test_causes_are_the_caller_the_order_and_what_was_heard(disk: Disk) -> None:
    disk.write(FRONT, ran(DRIVER, 0, payloads.pack_call("order", (1,), {})), Read(payloads.pack_value(7), 0, ()))
    disk.write(STORE, ran(DRIVER, 0, add(0)), ran(FRONT, 0, add(1), needs=((FRONT, 2),)))
    source = FolderSource([disk.folder])
    past = causes.past_of(source, f"{FRONT}->{STORE}#0")
    assert past.root == f"{STORE}:1"
    found = {(edge.kind, node.id, node.title) for edge, node in past.causes_of(past.root)}
    assert found == {("called", f"{FRONT}:0", "order(1)"), ("order", f"{STORE}:0", "add(0)")}
    by_id = {node.id: node for node in past.nodes}
    assert by_id[f"{FRONT}:0"].details == ("observed 7",)
    assert [(edge.kind, node.title) for edge, node in past.causes_of(f"{FRONT}:0")] == [
        ("called", "driver-1, which keeps no log")
    ]
    shallow = causes.past_of(source, f"{STORE}:1", depth=0)
    assert (len(shallow.nodes), shallow.cut) == (1, 2)


def test_caller_whose_log_was_committed_when_the_call_came_is_probable(disk: Disk) -> None:
    order = [payloads.pack_call("order", (number,), {}) for number in range(3)]
    disk.write(FRONT, ran(DRIVER, 0, order[0]), ran(DRIVER, 1, order[1], needs=((STORE, 1),)),
               ran(DRIVER, 2, order[2], needs=((STORE, 2),)))  # fmt: skip
    disk.write(STORE, ran(FRONT, 0, add(0), needs=((FRONT, 1),)), ran(FRONT, 1, add(1), needs=((FRONT, 1),)),
               ran(FRONT, 2, add(2), needs=((FRONT, 3),)))  # fmt: skip
    source = FolderSource([disk.folder])

    def callers(index: int) -> list[tuple[str, bool]]:
        past = causes.past_of(source, f"{STORE}:{index}", depth=1)
        return [(node.title, edge.probable) for edge, node in past.causes_of(past.root) if edge.kind == "called"]

    assert callers(0) == [("order(0)", False)]
    assert callers(1) == [("order(1)", True)], "it says no more than what was known before"
    assert callers(2) == [("order(2)", False)]


def test_partition_that_a_call_was_given_is_a_cause_and_is_not_opened(disk: Disk) -> None:
    partitions = pytest.importorskip("lineage_stash.on_spark.partitions")
    record = partitions.Record("driver-1:words-3", 2, 500, 9, "digest", "192.0.2.2", "/nowhere/000002.arrow")
    value = payloads.pack_value(partitions.Partition(record))
    found = partition_in(value)
    assert str(found) == "partition 2 of driver-1:words-3 (500 rows, computed on 192.0.2.2)"
    call = wrap(payloads.pack_call("count", ([1],), {}), 4, 1)
    disk.write(STORE, Got(DRIVER, 4, value, 0, ()), ran(DRIVER, 0, call))
    past = causes.past_of(FolderSource([disk.folder]), f"{STORE}:1")
    edges = [(edge.kind, node.kind, node.title) for edge, node in past.causes_of(past.root)]
    assert ("read", "partition", str(found)) in edges


@pytest.mark.parametrize("what", ["Store-1", "driver-1/Store-1!4", "nobody:3", f"{STORE}:99"])
def test_what_names_no_call_is_one_line(disk: Disk, what: str) -> None:
    disk.write(STORE, ran(DRIVER, 0, add(0)))
    with pytest.raises(NotFound) as told:
        causes.past_of(FolderSource([disk.folder]), what)
    assert "\n" not in str(told.value)


def test_words_show_plain_values_and_the_types_of_others() -> None:
    assert call_in_words(payloads.pack_call("put", (1, "a"), {"b": None})).text == "put(1, 'a', b=None)"
    assert call_in_words(payloads.pack_call("put", (object,), {})).text == "put(type)"
    assert value_in_words(payloads.pack_value({1, 2})) == "a value of type set"
    assert value_in_words(payloads.pack_error("f", KeyError("x"))) == "raised KeyError"
    assert reading_in_words(payloads.pack_value(3)) == "observed 3"
    assert just_before(PeerId("b")) < "b"
    assert just_before(PeerId("b")) > "a/anything"


CALLS = 1_000_000
LONGEST_ANSWER_S = 1.0


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a replica with a log of a million calls of two callers, none of it truncated."""
    folder = tmp_path_factory.mktemp("million") / "replica-0"
    replica = DiskReplica(folder, identity="store/replica-0")
    payload, per_span = add(1), 500
    frames = []
    for lower in range(0, CALLS, per_span):
        entries = tuple(
            Ran(DRIVER, Seqno(index // 2), payload, 0, ()) if index % 2 else Ran(FRONT, Seqno(index // 2), None, 0, ())
            for index in range(lower, lower + per_span)
        )
        span = codec.pack_span(Range(STORE, FIRST_INCARNATION, Index(lower), entries))
        body = span.body if isinstance(span.body, bytes) else b"".join(span.body)
        frames.append(codec.encode(Append((span._replace(body=body),), (), (), (), False)))
    for start in range(0, len(frames), 100):
        replica.handle_all(frames[start : start + 100])
    replica.close()
    return folder


def test_answers_about_a_run_of_a_million_calls_take_less_than_a_second(million: Path, tmp_path: Path) -> None:
    plane = MemoryPlane()
    plane.add_services()
    view = FolderView(million)
    with serving(tmp_path, view.replica) as address:
        plane.listen("replica-0", address)
        plane.create(STORE)
        for source in (FolderSource([million]), ClusterSource(read(plane), plane, NODE, ALIVE)):  # type: ignore[arg-type]
            for ask in (
                lambda source: read_log(source, STORE, tail=100),
                lambda source: read_log(source, STORE, lower=400_000, upper=400_100),
                lambda source: causes.past_of(source, f"{STORE}:{CALLS - 1}"),
                lambda source: causes.past_of(source, f"{DRIVER}->{STORE}#123456"),
            ):
                began = time.monotonic()
                ask(source)
                assert time.monotonic() - began < LONGEST_ANSWER_S
    view.close()


def test_replica_that_is_silent_is_not_waited_for_while_another_answers(disk: Disk, tmp_path: Path) -> None:
    disk.write(STORE, ran(DRIVER, 0, add(0)))
    view = FolderView(disk.folder)
    plane = MemoryPlane()
    plane.add_services((NODE, NODE))
    plane.create(STORE)
    silent = tmp_path / "silent"
    silent.mkdir()
    with serving(tmp_path, view.replica) as answering, listening(silent, lambda *_: None) as address:
        plane.listen("replica-0", address)
        plane.listen("replica-1", answering)
        began = time.monotonic()
        part = read_log(ClusterSource(read(plane), plane, NODE, ALIVE), STORE)  # type: ignore[arg-type]
        assert part.upper == 1
        assert time.monotonic() - began < 4.0
    view.close()
