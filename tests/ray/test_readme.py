"""The README's first page runs as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "survive.py"


def test_readme_shows_the_example_that_is_run() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown == EXAMPLE.read_text(encoding="utf-8")


@pytest.mark.ray
def test_first_page_survives_its_kill(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, env={**os.environ, "RAY_ADDRESS": "local"}, capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip
    numbers = [line for line in ran.stdout.splitlines() if line.isdecimal()]
    assert numbers == ["1000", "2000"], ran.stdout + ran.stderr
    assert ran.returncode == 0
