"""The compiled form of the hot modules: the same sources through mypyc, three times as fast, and never required.

`python -m lineage_stash.compiling` makes it. It lies in a folder that is named by a digest of the sources it was made
from, so that a form that is out of date is never used. Without it, or
with LINEAGE_STASH_PURE=1 in the environment, the sources run as they are and do the same.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent
NOT_HOT = frozenset(("__init__.py", "invariants.py"))
HOT_BESIDE_THE_CORE = ("codec.py", "shell.py", "store/contract.py", "store/replica.py", "store/quorum.py")
SUBPACKAGES = ("core", "store")
MADE = "made"
PURE = "LINEAGE_STASH_PURE"


def hot_modules() -> list[Path]:
    """The modules on the way of a call, relative to the package."""
    core = sorted(path for path in (PACKAGE / "core").glob("*.py") if path.name not in NOT_HOT)
    return [path.relative_to(PACKAGE) for path in core] + [Path(name) for name in HOT_BESIDE_THE_CORE]


def folder() -> Path:
    """Where the compiled form of exactly these sources lies, if it was made."""
    digest = hashlib.sha256(sys.version.encode())
    for module in hot_modules():
        digest.update(str(module).encode())
        digest.update((PACKAGE / module).read_bytes())
    return PACKAGE / "_compiled" / digest.hexdigest()[:16]


def is_wanted() -> bool:
    """Whether the compiled form may be used."""
    return os.environ.get(PURE, "0") in ("", "0")


def use() -> bool:
    """Have the hot modules imported in their compiled form, if there is one; whether there is."""
    made = folder()
    if not is_wanted() or not (made / MADE).exists():
        return False
    for library in made.glob("*__mypyc.*.so"):
        _load(library)
    sys.modules["lineage_stash"].__path__.insert(0, str(made))
    for name in SUBPACKAGES:
        importlib.import_module(f"lineage_stash.{name}").__path__.insert(0, str(made / name))
    return True


def _load(library: Path) -> None:
    """Import the library that all compiled modules share; they look for it by its bare name."""
    name = library.name.partition(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, str(library))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
