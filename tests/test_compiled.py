"""The compiled form is used only where it was made from exactly these sources, and not where it is not wanted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lineage_stash import compiled

ASK = "import lineage_stash, lineage_stash.core.peer as peer; print(lineage_stash.is_compiled, peer.__file__[-3:])"


def ask(pure: str) -> list[str]:
    environment = {**os.environ, compiled.PURE: pure}
    ran = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.split()


def test_sources_run_where_the_compiled_form_is_not_wanted() -> None:
    assert ask("1") == ["False", ".py"]


def test_compiled_form_runs_where_it_was_made() -> None:
    made = compiled.folder() / compiled.MADE
    was_made = made.exists()
    is_used = ask("0")
    assert is_used in (["True", ".so"], ["False", ".py"])
    assert was_made <= (is_used == ["True", ".so"]) <= made.exists()  # it may have been made meanwhile


def test_form_of_other_sources_has_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = compiled.folder()
    for module in compiled.hot_modules():
        copy = tmp_path / module
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((compiled.PACKAGE / module).read_bytes())
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path)
    assert compiled.folder().name == before.name
    (tmp_path / "core" / "peer.py").write_text("changed = True\n", encoding="utf-8")
    assert compiled.folder().name != before.name


def test_every_module_of_the_core_is_hot_but_those_named() -> None:
    names = {path.name for path in compiled.hot_modules()}
    assert {"peer.py", "program.py", "codec.py", "quorum.py"} <= names
    assert not names & compiled.NOT_HOT
