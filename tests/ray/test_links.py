"""Links to those who do not read, and to former lives: without sockets."""

from collections.abc import Callable
from typing import Any

from lineage_stash.on_ray.links import FORGOTTEN, MOST_UNREAD_BYTES, Kind, Links

BODY = b"x" * 1_000_000


class Line:
    """A connection to somebody who reads nothing."""

    def __init__(self, introduction: str) -> None:
        self.introduction = introduction
        self.queued_bytes = 0
        self.closed: str | None = None

    def send(self, _: int, body: bytes) -> None:
        self.queued_bytes += len(body)

    def close(self, reason: str) -> None:
        self.closed = reason


class Nobody:
    """A registry that knows nobody, and a loop that does nothing."""

    def ask(self, _action: Callable[[], Any], _then: Any = None, _otherwise: Any = None) -> None:
        return


def links_that_note_deaths() -> tuple[Links, list[str]]:
    deaths: list[str] = []
    nobody: Any = Nobody()
    return Links(nobody, nobody, "here", lambda address, _: deaths.append(address)), deaths


def opened(links: Links, address: str) -> Any:
    line: Any = Line(address)
    links.on_open(line)
    return line


def test_process_that_does_not_read_gets_no_more_than_so_many_bytes() -> None:
    links, _ = links_that_note_deaths()
    line = opened(links, "stopped@0")
    for _ in range(200):
        links.say("stopped@0", Kind.MESSAGE, BODY)
    assert line.queued_bytes <= MOST_UNREAD_BYTES + len(BODY)


def test_link_to_a_former_life_is_closed_once_the_next_one_is_spoken_to_and_nobody_is_accused() -> None:
    links, deaths = links_that_note_deaths()
    former, other = opened(links, "peer@1"), opened(links, "peers@0")
    links.say("peer@2", Kind.MESSAGE, b"")
    assert former.closed == FORGOTTEN
    assert other.closed is None
    links.on_lost(former, FORGOTTEN)
    assert deaths == []
    assert "peer@1" not in links.open


def test_link_to_a_former_life_is_closed_when_the_next_one_reports() -> None:
    links, _ = links_that_note_deaths()
    former = opened(links, "peer@0")
    opened(links, "peer@1")
    assert former.closed == FORGOTTEN
    assert list(links.open) == ["peer@1"]
