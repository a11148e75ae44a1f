"""The README's first page runs as printed, and so do the ones about effects and about tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.parametrize(("page", "example"), [
    ("README.md", "survive.py"), ("docs/effects.md", "effects.py"), ("docs/testing.md", "test_counter.py"),
])  # fmt: skip
def test_page_shows_the_example_that_is_run(page: str, example: str) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert shown == (EXAMPLES / example).read_text(encoding="utf-8")


@pytest.mark.ray
@pytest.mark.parametrize(
    ("example", "printed"),
    [("survive.py", ["1000", "2000"]), ("effects.py", ["100", "100"])],
    ids=["README", "effects"],
)
def test_page_survives_its_kill(example: str, printed: list[str], tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / example)], cwd=tmp_path, env={**os.environ, "RAY_ADDRESS": "local"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    numbers = [line for line in ran.stdout.splitlines() if line.isdecimal()]
    assert numbers == printed, ran.stdout + ran.stderr
    assert ran.returncode == 0


@pytest.mark.ray
@pytest.mark.slow
def test_page_about_tests_passes_its_own_tests() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "test_counter.py")], cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": "local"}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
