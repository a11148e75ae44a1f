"""A spare has loaded an actor's code before anybody needs it; and how often processes look for cycles."""

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import lineage_stash as ray
from lineage_stash.on_ray import garbage
from lineage_stash.testing import inject

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(120)]


class Loaded:
    """Leaves a file, named by the process, in every process that loads what refers to it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return eval, (f"open('{self.folder}/' + str(__import__('os').getpid()), 'w').close()",)


def actor_that_shows_where_it_is_loaded(folder: Path) -> Any:
    class Counter:
        loaded = Loaded(str(folder))

        def __init__(self) -> None:
            self.value = 0

        def add(self) -> int:
            self.value += 1
            return self.value

        def thresholds(self) -> tuple[int, int, int]:
            return ray.observe(gc.get_threshold)  # type: ignore[no-any-return]

        def frozen(self) -> int:
            return ray.observe(gc.get_freeze_count)  # type: ignore[no-any-return]

    return ray.remote(Counter).options(num_cpus=0).remote()


def loaded_by(folder: Path) -> set[int]:
    return {int(found.name) for found in folder.iterdir()}


def test_a_killed_actor_goes_on_in_a_spare_that_had_loaded_its_class_before(tmp_path: Path) -> None:
    counter = actor_that_shows_where_it_is_loaded(tmp_path)
    assert ray.get(counter.add.remote(), timeout=60) == 1
    killed = inject.pid_of(counter)
    inject.wait_until(lambda: loaded_by(tmp_path) - {killed}, "a spare has loaded the class")
    prepared = loaded_by(tmp_path) - {killed}
    os.kill(killed, signal.SIGKILL)
    assert ray.get(counter.add.remote(), timeout=60) == 2
    assert inject.pid_of(counter) in prepared


def test_a_class_that_cannot_be_loaded_does_not_keep_a_spare_from_the_next_one(tmp_path: Path) -> None:
    class Broken:
        needs = Loaded(str(tmp_path / "nowhere"))

    broken = ray.remote(Broken).options(num_cpus=0).remote()
    with pytest.raises(ray.exceptions.RayActorError, match=r"could not load its class \(FileNotFoundError"):
        ray.get(broken.__ray_ready__.remote(), timeout=60)
    counter = actor_that_shows_where_it_is_loaded(tmp_path)
    ray.get(counter.add.remote(), timeout=60)
    own = inject.pid_of(counter)
    inject.wait_until(lambda: loaded_by(tmp_path) - {own}, "a spare has loaded the class that can be loaded")


def test_cycles_are_looked_for_seldom_while_a_process_takes_part(tmp_path: Path) -> None:
    assert gc.get_threshold() == garbage.SELDOM
    counter = actor_that_shows_where_it_is_loaded(tmp_path)
    assert ray.get(counter.thresholds.remote(), timeout=60) == garbage.SELDOM
    assert ray.get(counter.frozen.remote(), timeout=60) > 10_000


def test_a_program_with_thresholds_of_its_own_keeps_them() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(123, 4, 5)
        garbage.look_seldom()
        garbage.look_as_before()
        assert gc.get_threshold() == (123, 4, 5)
        gc.set_threshold(*garbage.PYTHONS)
        garbage.look_seldom()
        assert gc.get_threshold() == garbage.SELDOM
        garbage.look_as_before()
        assert gc.get_threshold() == garbage.PYTHONS
    finally:
        gc.set_threshold(*before)
