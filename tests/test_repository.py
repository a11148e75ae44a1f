"""The repository is about the project and not about the machine it was written on, and its lock is plain.

Looks at every file that git tracks or would add. The forbidden words are put together from pieces, so that this file
does not contain what it forbids.
"""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lineage_stash

ROOT = Path(__file__).parents[1]
LOCK_LINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!]*")

FORBIDDEN = {
    # A path that begins at the root of the machine; "some/wo" + "rk/here" is nobody's home.
    "machine path": re.compile(rb"(?<![\w.-])/(?:" + b"wo" + b"rk|ro" + b"ot)/"),
    "registry host": re.compile(
        rb"\b(?:py" + rb"pi\.org|python" + rb"hosted\.org|ana" + rb"conda\.org|jf" + rb"rog\.io)"
    ),
    "registry option": re.compile(rb"--(?:extra-)?index" + rb"-url|--find" + rb"-links|--trusted" + rb"-host"),
}


def declared() -> dict[str, Any]:
    """The project table of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def declared_dependencies() -> list[str]:
    return [*declared()["dependencies"], *declared()["optional-dependencies"]["dev"]]


def lock_lines() -> list[str]:
    return (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()


def repository_files() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file()]


def findings(content: bytes) -> list[str]:
    return [kind for kind, pattern in FORBIDDEN.items() if pattern.search(content)]


def test_no_file_names_the_machine_or_a_registry() -> None:
    found = {str(path.relative_to(ROOT)): findings(path.read_bytes()) for path in repository_files()}
    assert {path: kinds for path, kinds in found.items() if kinds} == {}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("see /wo" + "rk/main", "machine path"),
        ("file:///ro" + "ot/x", "machine path"),
        ("https://py" + "pi.org/simple", "registry host"),
        ("https://files.python" + "hosted.org/x", "registry host"),
        ("pip install --extra-index" + "-url=x", "registry option"),
    ],
)
def test_forbidden_words_are_caught(content: str, kind: str) -> None:
    assert findings(content.encode()) == [kind]


@pytest.mark.parametrize("content", ["a network/" + "path", "frame" + "wo" + "rk/x", "chroot" + "/etc"])
def test_ordinary_words_pass(content: str) -> None:
    assert findings(content.encode()) == []


def test_lock_is_plain_names_and_versions() -> None:
    assert [line for line in lock_lines() if not LOCK_LINE.fullmatch(line)] == []


def test_lock_names_each_package_once() -> None:
    names = [canonicalize_name(line.partition("==")[0]) for line in lock_lines()]
    assert sorted(set(names)) == sorted(names)


def test_lock_satisfies_what_the_project_declares() -> None:
    locked = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lock_lines())}
    unmet = [
        text
        for text, wanted in ((text, Requirement(text)) for text in declared_dependencies())
        if not wanted.specifier.contains(locked.get(canonicalize_name(wanted.name), "0"), prereleases=True)
    ]
    assert unmet == []


def test_every_dependency_has_an_upper_bound() -> None:
    assert [text for text in declared_dependencies() if "<" not in text] == []


def test_package_and_project_have_one_version() -> None:
    assert declared()["version"] == lineage_stash.__version__
