"""Partitions that are asked for: who looks after the stages of a script finds them with one question."""

from typing import Any

from lineage_stash.on_spark.partitions import find_lost, lost_key


class Plane:
    """Keys without a cluster, and how often somebody has asked."""

    def __init__(self, *keys: str) -> None:
        self.questions = 0
        self._keys = sorted(keys)

    def keys(self, prefix: str) -> list[str]:
        self.questions += 1
        return [key for key in self._keys if key.startswith(prefix)]


def test_lost_partitions_of_all_stages_of_a_script_are_one_question() -> None:
    asked_for = [("script:words-1", 2), ("script:words-1", 10), ("script:lines-12", 1), ("script-2:words-1", 3)]
    plane: Any = Plane(*[lost_key(stage, number) for stage, number in asked_for])
    found = find_lost(plane, "script")
    assert {stage: sorted(numbers) for stage, numbers in found.items()} == {
        "script:words-1": [2, 10], "script:lines-12": [1],
    }  # fmt: skip
    assert plane.questions == 1
