"""Access: who may see the page. Pure.

Rules:
- Everything is refused without a key, the page's own files too. A browser brings it once, in the address that
  `stash ui` prints, and gets a cookie for it, so that the key stays neither in the address bar nor in a bookmark.
- A tool brings the cluster's token, as it does for Ray's own dashboard: `Authorization: Bearer ...`.
- A request must be addressed to this machine by a name for it: otherwise a page from elsewhere that has its own name
  point here could read everything.
- Keys are made anew each time, and compared in constant time.
"""

import secrets
from collections.abc import Callable
from enum import Enum, auto
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

OWN_NAMES = ("127.0.0.1", "localhost", "::1")
KEY = "key"
COOKIE = "stash-ui"
KEY_BYTES = 24


class Verdict(Enum):
    """What to do with a request."""

    SERVE = auto()
    WELCOME = auto()
    """It has brought the key: give it a cookie, and have it come again without."""
    REFUSE = auto()
    MISDIRECTED = auto()
    """It was not addressed to this machine."""


class Access:
    """The keys of one server."""

    def __init__(self, is_token: Callable[[str], bool]) -> None:
        """`is_token` says whether an `Authorization` header has the cluster's token."""
        self.key = secrets.token_urlsafe(KEY_BYTES)
        self._session = secrets.token_urlsafe(KEY_BYTES)
        self._is_token = is_token

    def judge(self, target: str, header: Callable[[str], str]) -> Verdict:
        """What to do with a request for `target`; `header` gives what it says under a name, or nothing."""
        if not is_own_name(header("Host")):
            return Verdict.MISDIRECTED
        brought = parse_qs(urlsplit(target).query).get(KEY, [])
        if any(_same(key, self.key) for key in brought):
            return Verdict.WELCOME
        if _same(_cookie(header("Cookie")), self._session):
            return Verdict.SERVE
        authorization = header("Authorization")
        return Verdict.SERVE if authorization and self._is_token(authorization) else Verdict.REFUSE

    @property
    def cookie(self) -> str:
        """What a browser is to bring from now on; no script can read it, and no other site's page sends it."""
        return f"{COOKIE}={self._session}; HttpOnly; SameSite=Lax; Path=/"


def is_own_name(host: str) -> bool:
    """Whether a `Host` header names this machine, at whatever port: it may have been forwarded."""
    try:
        return urlsplit(f"//{host}").hostname in OWN_NAMES
    except ValueError:
        return False


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _same(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode(), expected.encode())
