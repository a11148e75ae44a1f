"""The page of a real run in a real browser, while an actor of the run is killed; then the page of what the run left."""

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import ray as plain_ray
from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled

import lineage_stash as ray
from lineage_stash.cli.records import read_recoveries
from lineage_stash.on_ray.api import current
from lineage_stash.testing import inject
from tests.ui.browser import DOWN, ENTER, ESCAPE, Browser, browsing

pytestmark = [pytest.mark.ray, pytest.mark.services, pytest.mark.timeout(180)]

WITHIN_S = 60.0
LINE = "over the lazy dog again"
PHASES = ["detect", "gather", "settle", "start", "restore", "replay"]


@ray.remote
class Counter:
    """Counts words."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, word: str) -> int:
        self.counts[word] = self.counts.get(word, 0) + 1
        return self.counts[word]


@ray.remote
class Splitter:
    """Has others count the words of a line."""

    def __init__(self, counters: "list[ray.ActorHandle]") -> None:
        self.counters = counters

    def split(self, line: str) -> int:
        words = line.split()
        counted = [self.counters[len(word) % len(self.counters)].count.remote(word) for word in words]
        return sum(ray.get(counted))


class Run:
    """A program that goes on in the background."""

    def __init__(self) -> None:
        self.counters = [Counter.remote(), Counter.remote()]
        self.splitter = Splitter.remote(self.counters)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        ray.get(self.splitter.split.remote("a stash of lineage"))
        self._thread.start()

    def _go_on(self) -> None:
        while not self._ended.wait(0.02):
            ray.get(self.splitter.split.remote(LINE))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def cluster(storage: Path) -> Iterator[Callable[[], None]]:
    """Our own cluster, with services; it can be ended earlier."""
    with (
        tempfile.TemporaryDirectory(prefix="stash-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        monkeypatch.setenv("RAY_TMPDIR", folder)
        plain_ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        ray.init(storage=storage, replicas=3)
        yield end_cluster
        end_cluster()


def end_cluster() -> None:
    ray.shutdown()
    plain_ray.shutdown()


@pytest.fixture(scope="module")
def run(cluster: Callable[[], None]) -> Iterator[Run]:
    assert cluster
    running = Run()
    yield running
    running.end()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


@contextmanager
def stash_ui(*arguments: str) -> Iterator[str]:
    """`stash ui` as its user runs it: the address that it prints."""
    command = [sys.executable, "-m", "lineage_stash.cli", "ui", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline(), process.stdout.readline()]
            assert said[1].startswith("http://127.0.0.1:"), said
            yield said[1].strip()
            process.send_signal(signal.SIGINT)
            assert process.wait(WITHIN_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == "", "nothing is told of requests"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def page(run: Run, browser: Browser) -> Iterator[str]:
    """The page, open; its address."""
    assert run
    with stash_ui("--address", plain_ray.get_runtime_context().gcs_address) as url:
        browser.open("about:blank")
        browser.requests()  # those that the browser's own first page made of itself
        browser.open(url)
        yield url


def get(url: str, path: str, **headers: str) -> int:
    """Ask as somebody who is not the browser."""
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)) as connection:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status


def row_of(peer: str) -> str:
    return f'.peers tr[data-peer="{peer}"]'


def show(browser: Browser, key: str, view: str) -> None:
    """Go to a view by its key."""
    browser.press(key)
    browser.until(lambda: browser.all(f"main.{view}"), f"the view {view}")


def test_request_without_the_token_or_the_key_is_refused(page: str) -> None:
    assert {get(page, path) for path in ("/", "/facts", "/app.js", "/past?call=x")} == {401}
    assert get(page, "/facts", Authorization="Bearer somebody's") == 401
    assert get(page, "/facts", **get_auth_headers_if_auth_enabled({})) == 200
    assert get(page, urlsplit(page).path + "?" + urlsplit(page).query, Host="rebound.example") == 421


def test_peers_dataflow_and_promise_are_shown_live(page: str, browser: Browser, run: Run) -> None:
    assert page
    for actor in (*run.counters, run.splitter):
        row = row_of(actor._peer)
        browser.until(lambda row=row: "alive" in "".join(browser.texts(row)), f"{actor._peer} alive")
        browser.until(lambda row=row: "/s" in "".join(browser.texts(row)), f"the rate of {actor._peer}")
    assert "any number of processes may die" in browser.one("#promise").text
    flows = {f"{run.splitter._peer}→{counter._peer}" for counter in run.counters}
    flows.add(f"{current().id}→{run.splitter._peer}")
    keys = "return [...document.querySelectorAll('.graph .arrow.moving')].map((arrow) => arrow.dataset.key)"
    browser.until(lambda: set(browser.run(keys)) == flows, f"arrows that move: {flows}")
    assert any(label.endswith("/s") for label in browser.texts(".graph .label"))
    assert browser.one("#freshness").text == "live"


def test_killed_actor_is_in_the_timeline_and_lives_its_next_life(page: str, browser: Browser, run: Run) -> None:
    assert page
    show(browser, "1", "overview")
    victim = run.counters[0]
    inject.kill_process(victim)
    life = f"{row_of(victim._peer)} td:nth-child(3)"
    browser.until(lambda: "".join(browser.texts(life)).startswith("1"), "the next life of the actor")
    show(browser, "3", "timeline")
    browser.until(lambda: browser.all(".chart .recovery"), "the recovery in the timeline")
    (record,) = read_recoveries(current().process.plane)
    browser.press("n")
    browser.until(lambda: len(browser.all(".waterfall li")) == len(PHASES), "the phases of the recovery")
    assert [text.split()[0] for text in browser.texts(".waterfall li > span:first-child")] == PHASES
    assert f"life {record.incarnation} took over" in browser.one(".details h2").text
    assert record.reason in browser.one(".details .figures").text
    drawn = "return [...document.querySelectorAll('.recovery rect[data-phase]')].map((each) => each.dataset.phase)"
    browser.until(lambda: browser.run(drawn) == PHASES, "the phases drawn, because it has zoomed to them")
    browser.until(lambda: "Splitter" in browser.one(".details .figures").text, "who had to wait")


def width_of_recovery(browser: Browser) -> float:
    return float(browser.run("return document.querySelector('.chart .recovery').getBoundingClientRect().width"))


def test_timeline_is_zoomed_by_keys_and_by_the_wheel(page: str, browser: Browser) -> None:
    assert page
    show(browser, "3", "timeline")
    browser.press("n")
    browser.until(lambda: width_of_recovery(browser) > 600, "the recovery as wide as the page")
    browser.press("0")
    browser.until(lambda: width_of_recovery(browser) < 500, "all of the time, in which a recovery is a moment")
    before = width_of_recovery(browser)
    browser.press("n")
    browser.until(lambda: width_of_recovery(browser) > 600, "the recovery again")
    browser.press("-")
    browser.until(lambda: width_of_recovery(browser) < 600, "less of it after zooming out")
    browser.press("+")
    browser.until(lambda: width_of_recovery(browser) > max(600, before), "more of it after zooming in")
    browser.press("-", "-")
    browser.until(lambda: width_of_recovery(browser) < 400, "less of it again")
    wheel = """const plot = document.querySelector('.plot'), box = plot.getBoundingClientRect();
    plot.dispatchEvent(new WheelEvent('wheel', {deltaY: -400, clientX: box.left + box.width / 2, clientY: box.top + 40,
                                                bubbles: true, cancelable: true}))"""
    shrunk = width_of_recovery(browser)
    browser.run(wheel)
    browser.until(lambda: width_of_recovery(browser) > 1.2 * shrunk, "more of it after turning the wheel")


def test_past_of_a_call_is_a_graph(page: str, browser: Browser, run: Run) -> None:
    assert page
    show(browser, "4", "causes")
    browser.one("#call").send_keys(f"{run.splitter._peer}:3", ENTER)
    browser.until(lambda: browser.all(".past .cause.root"), "the call that was asked for")
    assert f"split('{LINE}')" in browser.run("return document.querySelector('.cause.root').getAttribute('aria-label')")
    kinds = "return [...document.querySelectorAll('.past .arrow')].map((arrow) => arrow.classList[1])"
    assert {"called", "heard", "order"} <= set(browser.run(kinds))
    browser.one("#call").click()
    browser.run("document.querySelector('#call').value = 'nobody:1'")
    browser.press(ENTER)
    browser.until(
        lambda: any("there is no peer nobody" in text for text in browser.texts(".empty.bad")), "one clear line"
    )
    browser.press(ESCAPE)


def test_replicas_and_nodes_are_shown(page: str, browser: Browser) -> None:
    assert page
    show(browser, "5", "replicas")
    assert browser.texts(".service header b") == ["coordinator", "replica-0", "replica-1", "replica-2"]
    assert {element.get_attribute("data-up") for element in browser.all(".service")} == {"true"}
    assert len(browser.all(".node")) == 1


def test_everything_is_reached_by_keys(page: str, browser: Browser, run: Run) -> None:
    assert page
    show(browser, "1", "overview")
    browser.press("/")
    browser.until(lambda: browser.run("return document.activeElement.name") == "find", "the field to look for peers")
    browser.press("splitter")
    browser.until(lambda: len(browser.all(".peers tbody tr")) == 1, "only what was looked for")
    browser.press(ESCAPE)
    browser.press("j", ENTER)
    browser.until(lambda: browser.all("#drawer:not([hidden])"), "one peer, opened by a key")
    assert run.splitter._peer in browser.one("#drawer").text
    browser.until(lambda: any("ran split(" in text for text in browser.texts("#drawer .log li")), "its log in words")
    browser.press(ESCAPE)
    browser.until(lambda: not browser.all("#drawer:not([hidden])"), "closed again")
    browser.run("location.hash = 'view=overview'")
    browser.until(lambda: len(browser.all(".peers tbody tr")) == 4, "everybody")
    browser.press("j", DOWN)
    assert browser.run("return document.activeElement.rowIndex") == 2
    browser.press("?")
    browser.until(lambda: browser.all("dialog[open]"), "which keys there are")
    browser.press(ESCAPE)
    browser.until(lambda: not browser.all("dialog[open]"), "closed again")


def test_light_and_dark_follow_the_system_until_one_is_chosen(page: str, browser: Browser) -> None:
    assert page
    ground = "return getComputedStyle(document.body).backgroundColor"

    def prefer(scheme: str) -> str:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        return str(browser.run(ground))

    light, dark = prefer("light"), prefer("dark")
    assert light != dark
    browser.press("t")
    assert browser.run(ground) == light
    browser.press("t")
    prefer("light")
    assert browser.run(ground) == dark
    browser.press("t")
    assert browser.run(ground) == light


def test_nothing_was_asked_of_anybody_else_and_the_key_was_told_to_nobody(page: str, browser: Browser) -> None:
    origin = f"http://{urlsplit(page).netloc}/"
    asked = browser.requests()
    assert len(asked) > 20
    assert {one["url"] for one in asked if not one["url"].startswith(origin)} == set()
    assert [one["url"] for one in asked if "key=" in one["url"]] == [page]
    assert {told for one in asked for name, told in one["headers"].items() if name.lower() == "referer"} <= {""}
    names = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert [name for name in browser.run(names) if not name.startswith(origin)] == []
    assert "key=" not in browser.driver.current_url
    missing = "Failed to load resource: the server responded with a status of 404"
    assert [said for said in browser.complaints() if missing not in said] == []


def test_cluster_that_is_gone_is_said_to_be_and_its_files_are_opened(
    page: str, browser: Browser, run: Run, cluster: Callable[[], None], storage: Path, tmp_path: Path
) -> None:
    assert page
    victim, splitter = run.counters[0]._peer, run.splitter._peer
    left = shutil.copytree(storage, tmp_path / "left")
    run.end()
    cluster()
    browser.until(lambda: "does not answer" in browser.one("#trouble").text, "that the cluster is gone")
    with stash_ui("--storage", str(left)) as url:
        browser.open(url)
        life = f"{row_of(victim)} td:nth-child(3)"
        browser.until(lambda: "".join(browser.texts(life)).startswith("1"), "the life of the killed actor")
        assert browser.one("#promise").text.startswith("Files.")
        keys = "return [...document.querySelectorAll('.graph .arrow')].map((arrow) => arrow.dataset.key)"
        assert f"{splitter}→{victim}" in browser.run(keys)
        show(browser, "3", "timeline")
        browser.press("n")
        browser.until(lambda: len(browser.all(".waterfall li")) == len(PHASES), "its recovery, from the files too")
        browser.run("location.hash = arguments[0]", f"view=causes&call={splitter}:3")
        browser.until(lambda: browser.all(".past .cause.root"), "the past of a call, from files")


def test_folder_without_a_store_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lineage_stash.cli", "ui", "--storage", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False, env=os.environ)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"stash: there is no store in {tmp_path}")
