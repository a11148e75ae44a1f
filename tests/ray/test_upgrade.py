"""An actor goes on with other code: from its state, once, and after a crash with the code that each call had."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lineage_stash as ray
from lineage_stash.on_ray.program import ActorProgram
from lineage_stash.on_ray.upgrading import fingerprint
from lineage_stash.testing import inject
from tests.ray.checkpoints import checkpoint_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(120)]

PATIENCE_S = 60.0


@ray.remote(num_cpus=0)
class Counter:
    """Counts in ones."""

    def __init__(self) -> None:
        self.count = 0
        self.log: list[str] = []

    def add(self) -> int:
        self.count += 1
        self.log.append("one")
        return self.count

    def all(self) -> list[str]:
        return self.log


@ray.remote(num_cpus=0)
class Faster(Counter._cls):  # type: ignore[misc,name-defined]
    """Counts in tens, in the same state."""

    def add(self) -> int:
        self.count += 10
        self.log.append("ten")
        return int(self.count)

    def name(self) -> str:
        return "faster"


@ray.remote(num_cpus=0)
class Total:
    """Has its state in another form."""

    __stash_version__ = 2

    def __stash_upgrade__(self, version: int, state: dict[str, Any]) -> None:
        assert version == 1
        self.state = {"total": state["count"], "log": [*state["log"], "upgraded"]}

    def add(self) -> int:
        self.state["total"] += 100
        self.state["log"].append("hundred")
        return int(self.state["total"])

    def all(self) -> list[str]:
        log: list[str] = self.state["log"]
        return log


@ray.remote(num_cpus=0)
class Forgetful:
    """Has another form, and does not know the former one."""

    __stash_version__ = 2


@ray.remote(num_cpus=0)
class Failing:
    """Does not get on with the former state."""

    __stash_version__ = 2

    def __stash_upgrade__(self, version: int, state: dict[str, Any]) -> None:
        state["log"].clear()
        raise KeyError("nothing here")


@ray.remote(num_cpus=0)
class Saved:
    """Says itself what its state is."""

    def __init__(self) -> None:
        self.count = 1

    def __ray_save__(self) -> int:
        return self.count

    def __ray_restore__(self, count: int) -> None:
        self.count = count

    def get(self) -> int:
        return self.count


@ray.remote(num_cpus=0)
class SavedOtherwise(Saved._cls):  # type: ignore[misc,name-defined]
    """Saves text."""

    __stash_version__ = 2

    def __stash_upgrade__(self, _: int, state: int) -> None:
        self.count = state + 41

    def __ray_save__(self) -> str:  # type: ignore[override]
        return str(self.count)

    def __ray_restore__(self, count: str) -> None:  # type: ignore[override]
        self.count = int(count)


@pytest.fixture
def counter() -> Iterator["ray.ActorHandle"]:
    made = Counter.remote()
    assert ray.get([made.add.remote() for _ in range(3)], timeout=PATIENCE_S) == [1, 2, 3]
    yield made
    ray.kill(made)


def test_upgraded_actor_goes_on_from_its_state_and_does_so_after_a_crash(counter: "ray.ActorHandle") -> None:
    faster = ray.upgrade(counter, Faster)
    assert ray.get([faster.add.remote(), faster.name.remote()], timeout=PATIENCE_S) == [13, "faster"]
    inject.kill_process(faster)
    assert ray.get(faster.all.remote(), timeout=PATIENCE_S) == ["one"] * 3 + ["ten"]
    total = ray.upgrade(faster, Total)
    assert ray.get(total.add.remote(), timeout=PATIENCE_S) == 113
    inject.kill_process(total)
    assert ray.get(total.all.remote(), timeout=PATIENCE_S) == ["one"] * 3 + ["ten", "upgraded", "hundred"]


def test_checkpoint_is_taken_after_an_upgrade_and_has_the_new_code(counter: "ray.ActorHandle") -> None:
    total = ray.upgrade(counter, Total)
    inject.wait_until(lambda: checkpoint_of(total) is not None, "a checkpoint")
    inject.kill_process(total)
    assert ray.get(total.add.remote(), timeout=PATIENCE_S) == 103


def test_classes_that_save_themselves_are_upgraded_from_what_they_save() -> None:
    saved = Saved.remote()
    other = ray.upgrade(saved, SavedOtherwise)
    assert ray.get(other.get.remote(), timeout=PATIENCE_S) == 42
    inject.wait_until(lambda: checkpoint_of(other) is not None, "a checkpoint")
    inject.kill_process(other)
    assert ray.get(other.get.remote(), timeout=PATIENCE_S) == 42


@pytest.mark.parametrize(("cls", "why"), [(Forgetful, "Define __stash_upgrade__"), (Failing, "raised KeyError")])
def test_upgrade_that_cannot_be_is_refused_and_the_actor_goes_on(
    counter: "ray.ActorHandle", cls: Any, why: str
) -> None:
    with pytest.raises(ray.UpgradeRefused, match=why):
        ray.upgrade(counter, cls)
    assert ray.get([counter.add.remote(), counter.all.remote()], timeout=PATIENCE_S) == [4, ["one"] * 4]


SCRIPT = """
import sys
import lineage_stash as ray

ray.init(address={address!r}, namespace="upgrades", log_to_driver=False)

@ray.remote(num_cpus=0, name="kept", lifetime="detached", get_if_exists=True)
class Kept:
    def __init__(self):
        self.count = 0
    def add(self):
        self.count += {step}
        return self.count

kept = Kept.remote()
if {upgrades}:
    kept = ray.upgrade(kept, Kept)
print("count", ray.get(kept.add.remote(), timeout=60))
if {upgrades}:
    ray.kill(kept)
"""


def run_script(step: int, *, upgrades: bool = False) -> "subprocess.CompletedProcess[str]":
    import ray as plain_ray

    address = plain_ray.get_runtime_context().gcs_address
    script = SCRIPT.format(address=address, step=step, upgrades=upgrades)
    where = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, cwd=where)


def test_script_with_newer_code_is_told_so_and_can_upgrade_a_detached_actor() -> None:
    assert "count 1" in run_script(1).stdout
    newer = run_script(100)
    assert "count 2" in newer.stdout
    assert "'kept' exists and goes on with the code that it has (Kept), which differs" in newer.stderr
    upgraded = run_script(100, upgrades=True)
    assert "count 102" in upgraded.stdout, upgraded.stderr


def test_same_methods_have_the_same_fingerprint_in_every_script() -> None:
    code = "class Kept:\n def add(self):\n  self.count += {step}\n  return [each for each in {{1, 2}}]"
    made: list[type] = []
    for step in (1, 1, 2):
        names: dict[str, Any] = {}
        exec(code.format(step=step), names)
        made.append(names["Kept"])
    first, same, other = map(fingerprint, made)
    assert first == same != other


def test_code_that_changed_behind_an_actors_back_upgrades_the_state_and_replays_nothing() -> None:
    runtime: Any = None  # nothing of it is needed without refs
    program = ActorProgram(Counter._cls, runtime)
    program.instance = Counter._cls()
    checkpoint = program._pack()
    restored = ActorProgram(Total._cls, runtime)
    restored.restore(checkpoint)
    assert restored.instance.state == {"total": 0, "log": ["upgraded"]}
    assert "version 1 of its state, and 2 of its code" in restored.replaced
    with pytest.raises(ray.UpgradeRefused, match="Define __stash_upgrade__"):
        ActorProgram(Forgetful._cls, runtime).restore(checkpoint)
