"""Telling people: one line for each event that somebody on call would want to know, and none while all is well.

Rules:
- All of it goes through the logger `lineage_stash`, whose children and handlers are the user's to configure.
- A user who configures nothing sees each line on stderr, after the name of the library.
- Nobody sees a line twice: where the root logger writes to this terminal already, as it does where Ray's logging was
  configured (`ray.LoggingConfig`, `RAY_LOGGING_CONFIG_ENCODING`), the line is written there and nowhere else.
- A line that is told from within a recovered call asks the real clock: the call itself has not asked for the time.
- What a line says in words, its record has as fields, beginning with `event`: where Ray's logging is JSON, so are they.
"""

import logging
import sys
from contextlib import suppress
from typing import Any

from lineage_stash.capture.here import paused

NAME = "lineage_stash"
FORMAT = f"{NAME}: %(message)s"

log = logging.getLogger(NAME)


RESERVED = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime"))
"""What a record has already, and refuses to be told again."""


def tell(event: str, text: str, level: int = logging.INFO, /, **facts: Any) -> None:
    """Say something to people: what happened by its name, in words, and as facts for machines, which JSON can hold."""
    with paused():
        log.log(level, "%s", text, extra=_fields(event, facts), stacklevel=2)


def warn(event: str, text: str, /, **facts: Any) -> None:
    """The same for what somebody should look at."""
    with paused():
        log.log(logging.WARNING, "%s", text, extra=_fields(event, facts), stacklevel=2)


def _fields(event: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {"event": event, **{f"{name}_" if name in RESERVED else name: fact for name, fact in facts.items()}}


def tell_crash(who: str) -> None:
    """Say of which error a part of this library dies, from where that was caught."""
    text = f"{who} ends with an error that nobody has foreseen"
    log.log(logging.CRITICAL, "%s", text, exc_info=True, extra={"event": "crash"}, stacklevel=2)


class OwnLines(logging.Handler):
    """Writes to stderr, whichever that is by now, unless somebody else has been asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        if self._is_told_by_others():
            return
        with suppress(OSError, ValueError):  # the terminal is gone, which is no reason to fail
            print(self.format(record), file=sys.stderr, flush=True)

    def _is_told_by_others(self) -> bool:
        return len(log.handlers) > 1 or any(map(writes_to_terminal, logging.getLogger().handlers))


def writes_to_terminal(handler: logging.Handler) -> bool:
    """Whether a handler writes to where the lines of this process go that nobody has redirected."""
    stream = getattr(handler, "stream", None)
    if stream is None:
        return False
    if stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        return True
    with suppress(OSError, ValueError, AttributeError):
        return stream.fileno() in (1, 2)
    return False


if not log.handlers:
    log.addHandler(OwnLines())
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
