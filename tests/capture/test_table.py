"""Every row of the table in `docs/nondeterminism.md` has its tests, and every kind of reading has its row."""

import ast
import re
from pathlib import Path

import pytest

from lineage_stash.capture.draws import SHARED_NAMES
from lineage_stash.capture.readings import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "nondeterminism.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## The table")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith(("| what |", "| ---"))
]
WAYS = ("captured", "captured if asked", "refused", "not covered")


def find_tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.add(node.name)
    return found


TESTS = find_tests()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_row_says_how_and_has_tests(row: list[str]) -> None:
    _, how, _, tests = row
    assert how in WAYS
    named = re.findall(r"`(test_\w+)`", tests)
    assert named
    assert [name for name in named if name not in TESTS] == []


@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_reading_is_in_the_table(kind: str) -> None:
    captured = " ".join(row[0] for row in ROWS if row[1] == "captured")
    assert kind.rpartition(".")[2] in captured


def test_functions_of_random_are_all_shared() -> None:
    assert {"random", "choice", "shuffle", "seed", "getstate", "setstate", "randbytes"} <= set(SHARED_NAMES)
