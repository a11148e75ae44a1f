"""The server over real connections, with facts that are made up."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from lineage_stash.ui import server as server_module
from lineage_stash.ui.access import Access
from lineage_stash.ui.server import LOOPBACK, Facts, Latest, NotThere, Server, serving

TOKEN = "Bearer token"


class MadeUp:
    """A source that counts how often it was asked."""

    def __init__(self) -> None:
        self.collected = 0

    def facts(self) -> Facts:
        self.collected += 1
        return {"peers": ["<script>"]}

    def log(self, peer: str, before: int | None) -> Facts:
        return {"peer": peer, "before": before}

    def recovery(self, wanted: str) -> Facts:
        raise NotThere(f"there is no recovery {wanted}")

    def past(self, call: str) -> Facts:
        return {"call": call}


@pytest.fixture(scope="module")
def source() -> MadeUp:
    return MadeUp()


@pytest.fixture(scope="module")
def server(source: MadeUp) -> Iterator[Server]:
    with serving(source, Access(lambda header: header == TOKEN), 0) as running:
        yield running


def ask(server: Server, target: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    with closing(http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=10)) as connection:
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()


@pytest.mark.parametrize("target", ["/", "/app.js", "/frame.css", "/facts", "/log?peer=x", "/past?call=x", "/nothing"])
def test_everything_is_refused_without_the_key(server: Server, target: str) -> None:
    answer, body = ask(server, target)
    assert answer.status == 401
    assert body.startswith(b"stash ui: this needs the address")


def test_key_leads_to_the_page_and_out_of_the_address(server: Server) -> None:
    answer, _ = ask(server, server.url.partition(str(server.server_port))[2])
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite" in cookie
    assert server.access.key not in cookie
    page, body = ask(server, "/", Cookie=cookie.partition(";")[0])
    assert page.status == 200
    assert b"<title>stash</title>" in body


@pytest.mark.parametrize("target", ["/", "/facts", "/app.js", "/nothing"])
def test_every_answer_forbids_to_load_from_elsewhere_and_to_tell_the_address(server: Server, target: str) -> None:
    answer, _ = ask(server, target, Authorization=TOKEN)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "unsafe" not in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["Cache-Control"] == "no-store"


def test_questions_are_answered_in_json_and_what_is_not_there_in_one_line(server: Server) -> None:
    answer, body = ask(server, "/log?peer=driver-1%2FCounter-1&before=7", Authorization=TOKEN)
    assert (answer.status, json.loads(body)) == (200, {"peer": "driver-1/Counter-1", "before": 7})
    answer, body = ask(server, "/recovery?id=3-ab", Authorization=TOKEN)
    assert (answer.status, json.loads(body)) == (404, {"error": "there is no recovery 3-ab"})


@pytest.mark.parametrize(
    "target", ["/../server.py", "/page/app.js", "/%2e%2e/server.py", "//etc/passwd", "/__init__.py"]
)
def test_only_files_of_the_page_are_served(server: Server, target: str) -> None:
    assert ask(server, target, Authorization=TOKEN)[0].status == 404


def test_nothing_but_reading_is_understood(server: Server) -> None:
    assert ask(server, "/facts", "POST", Authorization=TOKEN)[0].status == 501


def test_page_names_no_other_place(server: Server) -> None:
    found = {
        name: body for name, body in server.files.items() if b"//" in body.replace(b"http://www.w3.org/2000/svg", b"")
    }
    lines = [line for body in found.values() for line in body.decode().splitlines() if "://" in line]
    assert [line for line in lines if "www.w3.org/2000/svg" not in line] == []


def test_requests_are_written_nowhere(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    ask(server, server.url.partition(str(server.server_port))[2])
    ask(server, "/facts")
    assert capfd.readouterr() == ("", "")


def test_cluster_that_does_not_answer_is_said_to_do_so_beside_what_was_true_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE_S", 0.1)
    monkeypatch.setattr(server_module, "FRESH_S", 0.0)
    answers, end = threading.Event(), threading.Event()

    def collect() -> Facts:
        if answers.is_set():
            end.wait(30)
        answers.set()
        return {"peers": [1], "trouble": ""}

    latest = Latest(collect)
    try:
        assert latest.get() == {"peers": [1], "trouble": ""}
        old = latest.get()
        assert old["peers"] == [1]
        assert "does not answer" in old["trouble"]
    finally:
        end.set()


def test_cluster_that_has_never_answered_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PATIENCE_S", 0.05)
    end = threading.Event()
    try:
        with pytest.raises(NotThere, match="no answer from the cluster"):
            Latest(lambda: {"waited": end.wait(30)}).get()
    finally:
        end.set()


def test_many_pages_cost_one_collection() -> None:
    source = MadeUp()
    latest = Latest(source.facts)
    threads = [threading.Thread(target=latest.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.collected == 1


def test_usual_port_that_is_taken_is_replaced_and_one_that_was_asked_for_is_not() -> None:
    with (
        serving(MadeUp(), Access(lambda _: False), None) as first,
        serving(MadeUp(), Access(lambda _: False), None) as second,
    ):
        assert first.server_port != second.server_port
        with pytest.raises(OSError, match="in use"), serving(MadeUp(), Access(lambda _: False), second.server_port):
            pass
