"""Recoveries as they are read, followed and printed."""

from itertools import islice

import pytest
from rich.console import Console

from lineage_stash.cli import show
from lineage_stash.cli.following import follow
from lineage_stash.cli.records import Recovery, read_recoveries
from tests.cli.planes import MemoryPlane

ONE = Recovery(
    round=7, peer="driver-1/Counter-1", incarnation=2, noticed_at=1_700_000_000.0, reason="closed by the other side",
    detect_ms=1.4, gather_ms=12.0, settle_ms=3.0, start_ms=4.0, restore_ms=15.0, replay_ms=106.6, total_ms=142.0,
    replayed=13, host="a spare", pid=77,
)  # fmt: skip


def test_newest_is_last_and_unknown_fields_are_passed_over() -> None:
    plane = MemoryPlane()
    plane.recover("driver-1/A-1", 1, round_=1, noticed_at=20.0)
    plane.recover("driver-1/B-1", 1, round_=2, noticed_at=10.0, colour="from a later version")
    assert [found.peer for found in read_recoveries(plane)] == ["driver-1/B-1", "driver-1/A-1"]


def test_followed_recovery_is_told_once_even_when_an_earlier_round_ends_later() -> None:
    first, second, third = (ONE._replace(round=number) for number in (1, 2, 3))
    looks = iter([(first,), (first, third), (first, second, third), (first, second, third)])
    assert list(islice(follow(lambda: next(looks), (first,), pause=lambda: True), 2)) == [third, second]


def test_table_has_every_phase_in_milliseconds() -> None:
    console = Console(width=show.FILE_WIDTH)
    with console.capture() as capture:
        console.print(show.recoveries_table((ONE,)))
    lines = capture.get().splitlines()
    (head,) = (line for line in lines if "when" in line)
    (row,) = (line for line in lines if ONE.peer in line)
    assert head.split()[5:] == ["detect", "gather", "settle", "start", "restore", "replay", "total", "replayed", "host"]
    assert row.split()[-10:] == ["1", "12", "3", "4", "15", "107", "142", "13", "a", "spare"]
    assert "closed by the other side" in row
    assert show.when(ONE.noticed_at) in row


@pytest.mark.parametrize(("width", "is_table"), [(show.FILE_WIDTH, True), (80, False)])
def test_terminal_too_narrow_for_the_table_gets_lines(width: int, is_table: bool) -> None:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(show.recoveries_view(console, (ONE,)))
    assert ("times in milliseconds" in capture.get()) is is_table
    assert ("recovered driver-1/Counter-1" in capture.get()) is not is_table


def test_line_names_peer_life_and_total() -> None:
    line = show.recovery_line(ONE)
    assert line.startswith(show.when(ONE.noticed_at))
    assert "recovered driver-1/Counter-1 (life 2) in 142 ms" in line


def test_empty_table_says_so() -> None:
    assert "nothing has been recovered" in str(show.recoveries_table(()))
