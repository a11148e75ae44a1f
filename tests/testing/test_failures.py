"""Failures that are really caused, to real processes and at the moment that was planned; no Ray in it."""

import errno
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lineage_stash.testing import failures, signals
from lineage_stash.testing.failures import Injector, NotCaused, Processes, parse

Victim = subprocess.Popen[bytes]

WAITS = "import sys; sys.stdin.read()"
WRITES = """
import sys
for line in sys.stdin:
    try:
        with open(sys.argv[1], "a") as file:
            file.write("x")
        print("written", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., Victim]]:
    """Starts processes that end with the test."""
    started: list[Victim] = []

    def start_one(program: str = WAITS, *arguments: str) -> Victim:
        command = [sys.executable, "-c", program, *arguments]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[-1]

    yield start_one
    for victim in started:
        victim.kill()
        with suppress(BrokenPipeError):
            victim.communicate()


class Clock:
    """Time and progress that go on only when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.progress = 0.0

    def injector(self, script: str, targets: failures.Targets) -> Injector:
        return Injector(parse(script), targets, lambda: self.progress, clock=lambda: self.now)


def actors(**victims: Victim) -> Processes:
    return Processes(actor={name: partial(getattr, victim, "pid") for name, victim in victims.items()})


def await_count(injector: Injector, count: int) -> None:
    signals.wait_until(lambda: len(injector.injected) == count, f"{count} failures", 10.0)


def test_kill_happens_at_its_progress_and_is_on_record(start: Callable[..., Victim]) -> None:
    clock, a, b = Clock(), start(), start()
    with clock.injector("kill:actor:a@50%", actors(a=a, b=b)) as injector:
        clock.progress, clock.now = 0.49, 107.0
        assert a.poll() is None
        clock.progress = 0.5
        await_count(injector, 1)
        assert a.wait(10) == -9
        assert b.poll() is None
    (caused,) = injector.injected
    assert caused == failures.Injected(7.0, "kill:actor", "a", [a.pid])


def test_seconds_count_from_when_the_injection_began(start: Callable[..., Victim]) -> None:
    clock, a = Clock(), start()
    with clock.injector("kill:actor:a@10s", actors(a=a)) as injector:
        clock.progress, clock.now = 1.0, 109.9
        assert not injector.injected
        clock.now = 110.0
        await_count(injector, 1)
    assert a.wait(10) == -9


def test_several_are_killed_at_once(start: Callable[..., Victim]) -> None:
    clock, victims = Clock(), {name: start() for name in "abc"}
    with clock.injector("kill:actor:a+c@0%", actors(**victims)) as injector:
        await_count(injector, 2)
    assert [(caused.target, caused.pids) for caused in injector.injected] == [
        ("a", [victims["a"].pid]), ("c", [victims["c"].pid]),
    ]  # fmt: skip
    assert victims["b"].poll() is None


def test_any_is_one_of_those_who_are_there_and_the_seeds_own(start: Callable[..., Victim]) -> None:
    victims = {name: start() for name in "abc"}
    plan = parse("kill:actor:any@0s", seed=5)
    with Injector(plan, actors(**victims)) as injector:
        await_count(injector, 1)
    (name,) = plan[0].who.choose("abc", plan[0].draw)
    assert [caused.target for caused in injector.injected] == [name]
    assert victims[name].wait(10) == -9


def test_stopped_process_stands_still_and_goes_on_after_its_time(start: Callable[..., Victim]) -> None:
    a = start()
    with Injector(parse("stop:actor:a@0sfor200ms"), actors(a=a)) as injector:
        await_count(injector, 1)
        signals.wait_until(lambda: injector.injected[0].until is not None, "it goes on", 10.0)
        assert not signals.is_stopped(a.pid)
    (caused,) = injector.injected
    assert caused.until is not None
    assert caused.until - caused.second >= 0.2


def test_whatever_stands_still_goes_on_when_the_block_ends(start: Callable[..., Victim]) -> None:
    a = start()
    with Injector(parse("stop:actor:a@0s"), actors(a=a)) as injector:
        await_count(injector, 1)
        assert signals.is_stopped(a.pid)
    assert not signals.is_stopped(a.pid)
    assert signals.is_running(a.pid)


def test_write_to_a_full_disk_fails_until_there_is_room_again(start: Callable[..., Victim], tmp_path: Path) -> None:
    writer = start(WRITES, str(tmp_path / "file"))

    def written() -> bytes:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
        return writer.stdout.readline().strip()

    assert written() == b"written"
    with Injector(parse("fill:disk@0s"), Processes(disk={"0": lambda: writer.pid})) as injector:
        await_count(injector, 1)
        assert written() == str(errno.EFBIG).encode()
    assert written() == b"written"
    assert resource.prlimit(writer.pid, resource.RLIMIT_FSIZE) == resource.getrlimit(resource.RLIMIT_FSIZE)


class Disturbed(Processes):
    """Notes what it is told."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.told: list[tuple[object, ...]] = []

    def disturb(self, name: str, *, pause: bool, delay_ms: float) -> None:
        self.told.append((name, pause, delay_ms))

    def start_again(self, kind: str, name: str) -> None:
        self.told.append((kind, name))


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("pause:replica:0@0sfor1ms", [("0", True, 0.0), ("0", False, 0.0)]),
        ("slow:replica:0:100ms@0sfor1ms", [("0", False, 100.0), ("0", False, 0.0)]),
    ],
)
def test_replica_is_disturbed_and_then_left_alone(start: Callable[..., Victim], script: str, told: list[Any]) -> None:
    targets = Disturbed(replica={"0": partial(getattr, start(), "pid")})
    with Injector(parse(script), targets) as injector:
        signals.wait_until(lambda: len(targets.told) == 2, "it is over", 10.0)
    assert targets.told == told
    assert [caused.what for caused in injector.injected] == [script.partition(":replica")[0] + ":replica"]


def test_driver_that_was_killed_is_started_again(start: Callable[..., Victim]) -> None:
    driver = start()
    targets = Disturbed(driver={"driver": lambda: driver.pid})
    with Injector(parse("kill:driver@0sfor10ms"), targets):
        signals.wait_until(lambda: bool(targets.told), "it is started again", 10.0)
    assert driver.wait(10) == -9
    assert targets.told == [("driver", "driver")]


# what does not happen


def test_failure_that_was_never_due_is_raised_at_the_end(start: Callable[..., Victim]) -> None:
    clock, a = Clock(), start()
    clock.progress = 0.4
    with (
        pytest.raises(NotCaused, match=r"kill:actor:a@50% has not happened: all was over after 0 s, at \d+%"),
        clock.injector("kill:actor:a@50%", actors(a=a)),
    ):
        pass
    assert a.poll() is None


def test_failure_of_somebody_who_is_not_there_is_raised_at_the_end(start: Callable[..., Victim]) -> None:
    gone = start()
    gone.kill()
    gone.wait()
    names: list[str] = []

    class Watched(Processes):
        def pids(self, kind: str, name: str) -> Any:
            names.append(name)
            return super().pids(kind, name)

    targets = Watched(actor={"gone": lambda: gone.pid})
    with (
        pytest.raises(NotCaused) as raised,
        Injector(parse("kill:actor:gone@0s,kill:actor:nobody@0s"), targets) as injector,
    ):
        signals.wait_until(lambda: len(names) == 2, "both were looked for", 10.0)
    assert injector.injected == []
    assert "no process of actor gone runs" in str(raised.value)
    assert "there is no actor 'nobody': gone" in str(raised.value)


def test_error_of_the_block_is_not_hidden_by_failures_that_have_not_happened(start: Callable[..., Victim]) -> None:
    with pytest.raises(ZeroDivisionError) as raised, Injector(parse("kill:actor:a@60s"), actors(a=start())):
        raise ZeroDivisionError
    assert "kill:actor:a@60s has not happened" in raised.value.__notes__[0]


def test_progress_that_raises_is_told_of(start: Callable[..., Victim]) -> None:
    asked: list[int] = []

    def progress() -> float:
        asked.append(1)
        raise KeyError("how far")

    with (
        pytest.raises(NotCaused, match="progress raised KeyError: 'how far'"),
        Injector(parse("kill:actor:a@50%"), actors(a=start()), progress),
    ):
        signals.wait_until(lambda: bool(asked), "it was asked", 10.0)


def test_what_is_impossible_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="per cent of what"):
        Injector(parse("kill:actor:a@50%"), actors())
    with pytest.raises(ValueError, match="there is no gcs here, only actor"):
        Injector(parse("kill:gcs@1s"), actors())
    monkeypatch.delenv("RAY_testing_rpc_failure", raising=False)
    with pytest.raises(ValueError, match=r"before `ray\.init`"):
        Injector(parse("rpc:all"), actors())
    monkeypatch.setenv("RAY_testing_rpc_failure", failures.environment(parse("rpc:all"))["RAY_testing_rpc_failure"])
    with Injector(parse("rpc:all"), actors()) as injector:
        assert [(caused.what, caused.target) for caused in injector.injected] == [("rpc", "all")]
