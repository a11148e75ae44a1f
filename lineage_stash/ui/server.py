"""The server: the page's files and the facts, over HTTP on the loopback interface, to whoever has the key.

Rules:
- Only the loopback interface is listened on, and nothing but reading is understood.
- Nothing is written to a log: addresses have the key in them.
- What is sent says that the page may load from here and from nowhere else, that no other page may embed or read it,
  and that its address is told to nobody.
- Facts are collected when somebody asks, and are good for a while, the longer the more it took to collect them: any
  number of pages cost the cluster as much as one, and no page costs nothing. A cluster that does not answer is said to
  do so, beside what was true last: that is when somebody looks.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qs, urlsplit

from lineage_stash.ui.access import Access, Verdict

LOOPBACK = "127.0.0.1"
USUAL_PORT = 8266
"""The one after that of Ray's dashboard."""

LOOK_S = 0.1
"""How long it takes at most to notice that it is to end."""

FRESH_S = 0.5
PATIENCE_S = 3.0
"""How long a page waits for facts before it is told that there are none: a control plane may be away for a while."""

REST = 2.0
"""How long to rest after a collection, as a multiple of what it took."""

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

REFUSAL = "stash ui: this needs the address that `stash ui` has printed, with its key, or the cluster's token.\n"

Facts = dict[str, Any]
"""As JSON has it."""


class NotThere(Exception):
    """What was asked for is not there; one line."""


class Source(Protocol):
    """Where the facts come from: a cluster, or the files of one."""

    def facts(self) -> Facts:
        """All that the page shows at all times."""

    def log(self, peer: str, before: int | None) -> Facts:
        """Some entries of a log in words, the newest, or those before an index; raises `NotThere`."""

    def recovery(self, wanted: str) -> Facts:
        """One recovery in full; raises `NotThere`."""

    def past(self, call: str) -> Facts:
        """The causal past of a call as a graph; raises `NotThere`."""


class Latest:
    """The newest facts, collected by a thread for whoever asks; where that takes too long, the ones before."""

    def __init__(self, collect: Callable[[], Facts]) -> None:
        self._collect = collect
        self._lock = threading.Lock()
        self._asked: Future[Facts] | None = None
        self._good_until = float("-inf")
        self._facts: Facts | None = None
        self._as_of = time.monotonic()

    def get(self) -> Facts:
        """Facts that are fresh enough, or the last ones, and that they are old; raises `NotThere`."""
        with self._lock:
            if self._asked is None or (self._asked.done() and time.monotonic() > self._good_until):
                self._asked = Future()
                threading.Thread(target=self._answer, args=(self._asked,), name="collects facts", daemon=True).start()
            asked = self._asked
        try:
            return asked.result(PATIENCE_S)
        except TimeoutError as error:
            silent_s = time.monotonic() - self._as_of
            if self._facts is None:
                raise NotThere(f"There is no answer from the cluster, for {silent_s:.0f} s now") from error
            return {**self._facts, "trouble": f"The cluster does not answer. This is how it was {silent_s:.0f} s ago."}

    def _answer(self, asked: "Future[Facts]") -> None:
        began = time.monotonic()
        try:
            found = self._collect()
        except BaseException as error:  # noqa: BLE001 - whoever asked gets it
            asked.set_exception(error)
            return
        ended = time.monotonic()
        self._facts, self._as_of = found, ended
        self._good_until = ended + max(FRESH_S, REST * (ended - began))
        asked.set_result(found)


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: "Server"
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "stash", ""
    timeout: ClassVar[float] = 60.0
    """Of connections that are kept open and not used."""

    def do_GET(self) -> None:
        """Answer, or say why not."""
        verdict = self.server.access.judge(self.path, lambda name: self.headers.get(name, ""))
        if verdict is Verdict.MISDIRECTED:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, REFUSAL.encode())
        elif verdict is Verdict.REFUSE:
            self._send(HTTPStatus.UNAUTHORIZED, REFUSAL.encode(), **{"WWW-Authenticate": "Bearer"})
        elif verdict is Verdict.WELCOME:
            self._send(HTTPStatus.SEE_OTHER, b"", Location="/", **{"Set-Cookie": self.server.access.cookie})
        else:
            self._answer(urlsplit(self.path).path)

    def _answer(self, path: str) -> None:
        asked = self.server.questions.get(path)
        if asked is None:
            self._send_file("index.html" if path == "/" else path.removeprefix("/"))
            return
        given = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        try:
            self._send_json(HTTPStatus.OK, asked(given))
        except NotThere as error:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": str(error)})

    def _send_file(self, name: str) -> None:
        body = self.server.files.get(name)
        if body is None:
            self._send(HTTPStatus.NOT_FOUND, b"stash ui: there is no such page\n")
        else:
            self._send(HTTPStatus.OK, body, **{"Content-Type": TYPES[name.rpartition(".")[2]]})

    def _send_json(self, status: HTTPStatus, value: Facts) -> None:
        self._send(status, json.dumps(value, ensure_ascii=False).encode(), **{"Content-Type": "application/json"})

    def _send(self, status: HTTPStatus, body: bytes, **headers: str) -> None:
        self.send_response(status)
        told = {"Content-Type": "text/plain; charset=utf-8", **HEADERS, **headers, "Content-Length": str(len(body))}
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write nothing."""


class Server(ThreadingHTTPServer):
    """Listens, with a thread for each connection."""

    daemon_threads = True

    def __init__(self, source: Source, access: Access, port: int) -> None:
        self.access = access
        self.files = page_files()
        self.questions: dict[str, Callable[[dict[str, str]], Facts]] = {
            "/facts": lambda _: latest.get(),
            "/log": lambda given: source.log(given.get("peer", ""), _number(given.get("before"))),
            "/recovery": lambda given: source.recovery(given.get("id", "")),
            "/past": lambda given: source.past(given.get("call", "")),
        }
        latest = Latest(source.facts)
        super().__init__((LOOPBACK, port), Handler)

    @property
    def url(self) -> str:
        """What to open in a browser."""
        return f"http://{LOOPBACK}:{self.server_port}/?key={self.access.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A browser that has left is no error; whatever else happened to one connection is told without its address."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            sys.stderr.write(f"stash ui: {type(error).__name__}: {error}\n")


def page_files() -> dict[str, bytes]:
    """The page, as it comes with the package."""
    folder = files("lineage_stash.ui") / "page"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in TYPES}


@contextmanager
def serving(source: Source, access: Access, port: int | None) -> Iterator[Server]:
    """Serve in the background: at this port, or at the usual one, or, where that is taken, at any."""
    try:
        server = Server(source, access, USUAL_PORT if port is None else port)
    except OSError:
        if port is not None:
            raise
        server = Server(source, access, 0)
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_S,), name="stash ui", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
