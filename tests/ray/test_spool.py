"""The spool on disk gives back what was put, and takes no more disk than what is kept."""

import random

import pytest

from lineage_stash.on_ray import spool as module
from lineage_stash.on_ray.spool import FileSpool


def test_payloads_come_back_in_any_order_until_they_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 1000)
    draw = random.Random(7)
    spool = FileSpool()
    kept: dict[int, bytes] = {}
    for _ in range(2000):
        if kept and draw.random() < 0.48:
            place = draw.choice(list(kept))
            assert spool.get(place) == kept.pop(place)
            spool.drop(place)
        else:
            payload = draw.randbytes(draw.randrange(300))
            kept[spool.put(payload)] = payload
    assert all(spool.get(place) == payload for place, payload in kept.items())
    with pytest.raises(KeyError):
        spool.get(10**6)
    for place in kept:
        spool.drop(place)
    assert spool.disk_bytes == 0


def test_files_are_given_back_when_nothing_in_them_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 1000)
    spool = FileSpool()
    places = [spool.put(bytes(100)) for _ in range(100)]
    assert spool.disk_bytes == 10_000
    for place in places[:95]:
        spool.drop(place)
    assert spool.disk_bytes <= 1000
    for place in places[95:]:
        spool.drop(place)
    assert spool.disk_bytes == 0
