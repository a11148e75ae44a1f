"""Names that were bound early are found where the table says, and come back when capture is taken away."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lineage_stash.capture import install
from tests.capture import early
from tests.capture.replaying import is_captured, record, repeat

EARLY: dict[str, Callable[[], Any]] = {
    "globals": lambda: early.by_global(),
    "globals of numpy": lambda: early.by_numpy(),
    "default values": lambda: early.by_default(),
    "closures": lambda: early.by_closure(),
    "attributes of classes": lambda: early.ByAttribute().read(),
    "factories of dataclasses": lambda: early.ByFactory(),
}


@pytest.mark.parametrize("where", EARLY)
def test_name_that_was_bound_early_is_found(where: str) -> None:
    assert is_captured(EARLY[where])


def test_seed_of_numpy_that_was_bound_early_seeds_the_generator_of_the_actor() -> None:
    expected = early.by_seeded_numpy()
    first, tape = record(lambda: early.by_seeded_numpy())
    assert first == expected == repeat(lambda: early.by_seeded_numpy(), tape)


def test_name_in_a_container_is_not_found() -> None:
    assert record(early.by_container)[1].log == []


def test_names_come_back_when_capture_is_taken_away() -> None:
    assert early.time is time.time
    install.uninstall()
    assert early.time is time.time
    assert type(early.time).__name__ == "builtin_function_or_method"
    assert type(early.ByAttribute.__dict__["now"]).__name__ == "builtin_function_or_method"
    assert type(early.by_default.__defaults__[0]).__name__ == "builtin_function_or_method"  # type: ignore[index]
    install.install()


def test_module_that_is_imported_in_a_call_is_covered_and_its_import_is_not_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_module.py").write_text(
        "from time import time\nfrom random import random\nBEGAN = time()\ndef read():\n    return time(), random()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def use() -> Any:
        import late_module

        return late_module.read()

    first, tape = record(use)
    assert tape.kinds == ["time.time", "os.urandom"]
    assert repeat(use, tape) == first
    install.uninstall()
    assert type(sys.modules["late_module"].time).__name__ == "builtin_function_or_method"
    del sys.modules["late_module"]


def test_numpy_that_is_imported_in_a_call_is_covered() -> None:
    program = """
        import sys
        from lineage_stash.capture import install
        from tests.capture.replaying import is_captured
        install.install()
        assert "numpy" not in sys.modules
        def draw():
            import numpy
            return float(numpy.random.rand()), float(numpy.random.default_rng().random())
        assert is_captured(draw)
        assert "numpy" in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


def test_importing_and_installing_changes_no_sequence_and_loads_no_numpy() -> None:
    program = """
        import random, sys
        random.seed(5)
        state = random.getstate()
        from lineage_stash.capture import install
        import lineage_stash.capture.pickling
        assert random.getstate() == state
        install.install()
        assert random.getstate() == state
        install.uninstall()
        assert random.getstate() == state and "numpy" not in sys.modules and "ray" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
