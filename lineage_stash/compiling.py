"""`python -m lineage_stash.compiling`: make the compiled form of the hot modules with mypyc.

It takes mypy, a C compiler and about two minutes, and does nothing where it is up to date.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lineage_stash.compiled import MADE, PACKAGE, folder, hot_modules

OPTIMIZATION = "2"
"""As fast as level 3 here, and sooner made."""


def build() -> Path:
    """Make the compiled form, and drop those of other sources."""
    made = folder()
    if (made / MADE).exists():
        return made
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "lineage_stash"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("_compiled", "__pycache__", "*.so"))
        sources = [str(Path("lineage_stash") / module) for module in hot_modules()]
        command = [sys.executable, "-m", "mypyc", "--strict", "--ignore-missing-imports", *sources]
        environment = {**os.environ, "MYPYC_OPT_LEVEL": OPTIMIZATION}
        done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"mypyc failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        shutil.rmtree(made.parent, ignore_errors=True)
        half = made.with_suffix(".half")
        for library in [*Path(scratch).glob("*.so"), *copy.rglob("*.so")]:
            relative = library.relative_to(copy) if library.is_relative_to(copy) else Path(library.name)
            (half / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, half / relative)
        (half / MADE).touch()
        half.rename(made)
    return made


if __name__ == "__main__":
    started = time.monotonic()
    print(f"compiled: {build()} ({time.monotonic() - started:.0f} s)")
