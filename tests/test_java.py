"""The Java that Spark gets: the user's own where it is a 17, the bundled one everywhere else."""

from pathlib import Path

import pytest

from lineage_stash.java import JAVA_MAJOR, bundled_home, java_home, major_version


def make_home(folder: Path, release: str) -> Path:
    (folder / "release").write_text(release, encoding="utf-8")
    return folder


def test_java_home_of_the_right_version_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_home(tmp_path, 'IMPLEMENTOR="x"\nJAVA_VERSION="17.0.11"\n')))
    assert java_home() == tmp_path


def test_java_home_of_another_version_gives_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_home(tmp_path, 'JAVA_VERSION="21.0.2"\n')))
    assert java_home() == bundled_home()


def test_java_home_without_a_release_file_gives_the_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_home() == bundled_home()


@pytest.mark.parametrize("value", ["", None])
def test_java_home_unset_or_empty_gives_the_bundled_one(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("JAVA_HOME", value)
    assert java_home() == bundled_home()


def test_bundled_java_is_of_the_right_version() -> None:
    assert major_version(bundled_home()) == JAVA_MAJOR
    assert (bundled_home() / "bin" / "java").is_file()


@pytest.mark.parametrize(
    ("release", "major"),
    [
        ('JAVA_VERSION="17"', 17),
        ('JAVA_VERSION="17-ea"', 17),
        ('JAVA_VERSION="17.0.9+9"', 17),
        ('JAVA_VERSION="1.8.0_392"', 8),
        ('JAVA_VERSION="unknown"', None),
        ('MODULES="java.base"', None),
        ("", None),
    ],
)
def test_major_version_is_read_from_the_release_file(release: str, major: int | None, tmp_path: Path) -> None:
    assert major_version(make_home(tmp_path, release)) == major
