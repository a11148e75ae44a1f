"""Inputs for the jobs, with bad rows among them, and what must come out of them, computed by pandas and by numpy."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from raydp_jobs import flights, pagerank, sessions, wordcount
from tests.spark.jobs import counts_in, truth, write_texts

PARTITIONS = 4
LINES = 400
LONGEST_ROW = 4000
TOP = 3
DAYS = 6
GAP, LATENESS = 30, 90
WINDOW = 3
EVENTS = "user,time,page"


class Case(NamedTuple):
    """A job, how its input is made, and how its output is looked at."""

    name: str
    module: Any
    work: Callable[..., Any]
    options: tuple[str, ...]
    doing: str
    write: Callable[[Path], Path]
    check: Callable[[Path, Path], None]

    def arguments(self, given: Path, output: Path, *more: str, partitions: int = PARTITIONS) -> list[str]:
        """The command line that has it read its input and write its output."""
        return [str(given), "--output", str(output), "--partitions", str(partitions), *self.options, *more]


def read(folder: Path, *order: str) -> pd.DataFrame:
    """All rows of a folder of the output, in order."""
    return pq.read_table(folder).to_pandas().sort_values(list(order)).reset_index(drop=True)


def reasons(output: Path) -> list[tuple[str, str]]:
    """The bad rows: file and reason of each."""
    bad = read(output / "bad", "file", "reason")
    return [(Path(file).name, reason) for file, reason in zip(bad["file"], bad["reason"], strict=True)]


# wordcount


def write_lines(folder: Path) -> Path:
    """Texts of every kind."""
    return write_texts(folder, LINES)


def check_counts(_folder: Path, output: Path) -> None:
    """Compare with a plain loop: every word, every bad row and every file is accounted for."""
    expected = truth(LINES)
    assert counts_in(output) == expected
    best = sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))[:TOP]
    assert pq.read_table(output / "top.parquet").to_pylist() == [
        {"rank": at + 1, "word": word, "count": count} for at, (word, count) in enumerate(best)
    ]
    assert sorted(reasons(output)) == [
        ("bad.txt", f"it is longer than {LONGEST_ROW} characters"), ("bad.txt", "it is not UTF-8"),
        ("rows.parquet", "it has no text"),
    ]  # fmt: skip
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["files"], summary["words"], summary["bad_rows"]) == (4, sum(expected.values()), 3)


# sessions


def write_events(folder: Path) -> Path:
    """Three files of events, of which some come again, some late, some too late, and some are none."""
    folder.mkdir()
    draw = np.random.default_rng(7)
    count = 600
    events = pd.DataFrame({
        "user": [f"user {number}" for number in draw.integers(0, 12, count)],
        "time": pd.Timestamp("2026-03-01T08:00:00Z") + pd.to_timedelta(np.sort(draw.integers(0, 40_000, count)), "s"),
        "page": [f"/{number}" for number in draw.integers(0, 9, count)],
    })  # fmt: skip
    at = np.minimum(2, np.arange(count) // 200 + (draw.random(count) < 0.1) * draw.integers(1, 3, count))
    parts = [events[at == number] for number in range(3)]
    parts[1] = pd.concat([parts[1], parts[0].head(20), parts[1].head(5)])
    text = parts[0].to_csv(index=False)
    text += "user 1,yesterday,/1\n,2026-03-01T08:00:00Z,/1\nuser 1,2026-03-01T08:00:00Z\n"
    (folder / "part 0.csv").write_text(text)
    parts[1][["page", "user", "time"]].to_csv(folder / "part 1.csv.gz", index=False)
    parts[2].to_parquet(folder / "part 2.parquet", index=False, coerce_timestamps="us")
    return folder


def check_sessions(folder: Path, output: Path) -> None:
    """Compare with pandas."""
    files = [pd.read_csv(folder / "part 0.csv"), pd.read_csv(folder / "part 1.csv.gz"),
             pd.read_parquet(folder / "part 2.parquet")]  # fmt: skip
    come = pd.concat([part.assign(file=number) for number, part in enumerate(files)]).dropna()
    come["time"] = pd.to_datetime(come["time"], utc=True, errors="coerce", format="ISO8601")
    come = come.dropna().drop_duplicates(["user", "time", "page"]).sort_values(["file", "time", "user", "page"])
    newest = come.groupby("user")["time"].cummax()
    is_late = newest - come["time"] > pd.Timedelta(minutes=LATENESS)
    timely = come[~is_late].sort_values(["user", "time", "page"])
    begins = timely.groupby("user")["time"].diff().isna() | (
        timely.groupby("user")["time"].diff() > pd.Timedelta(minutes=GAP)
    )
    expected = (
        timely.groupby(["user", begins.cumsum().rename("number")])
        .agg(start=("time", "first"), end=("time", "last"), events=("page", "size"), pages=("page", "nunique"),
             entry=("page", "first"), exit=("page", "last"))
        .reset_index().drop(columns="number")
    )  # fmt: skip
    found = read(output / "sessions", "user", "start")
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    late = read(output / "late", "user", "time", "page")
    expected_late = come[is_late].sort_values(["user", "time", "page"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(late[["user", "time", "page"]], expected_late[["user", "time", "page"]],
                                  check_dtype=False)  # fmt: skip
    assert len(late) > 5
    assert sorted(reason for _, reason in reasons(output)) == [
        "it has no user", "it has not 3 fields as the header has", "its time is not a time",
    ]  # fmt: skip


# flights


def write_flights(folder: Path) -> Path:
    """Some days of the tables of the package, with bad rows."""
    (data,) = flights.package_tables()
    folder.mkdir()
    for name in ("planes", "airlines"):
        (folder / f"{name}.csv").write_bytes((Path(data) / f"{name}.csv").read_bytes())
    weather = (Path(data) / "weather.csv").read_text().splitlines()
    (folder / "weather.csv").write_text("\n".join(line for line in weather if ",2013,1," in line or "precip" in line))
    with zipfile.ZipFile(Path(data) / "flights.csv.zip") as packed:
        lines = packed.read("flights.csv").decode().splitlines()
    early = [line for line in lines[1:] if line.startswith("2013,1,") and int(line.split(",")[2]) <= DAYS]
    bad = [early[0].replace("2013,1,1,", "2013,2,31,"), early[1].replace(",UA,", ",NA,"), "2013,1,1"]
    with zipfile.ZipFile(folder / "flights.csv.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("flights.csv", "\n".join([lines[0], *early, *bad]))
    return folder


def rolling_delays(folder: Path, days: int) -> pd.DataFrame:
    """What pandas makes of the tables: one row for a carrier, an airport and a day."""
    table = pd.read_csv(folder / "flights.csv.zip", dtype={"carrier": str})
    table["date"] = pd.to_datetime(table[["year", "month", "day"]], errors="coerce")
    table = table.dropna(subset=["carrier", "date", "time_hour"])
    weather = pd.read_csv(folder / "weather.csv").groupby(["origin", "time_hour"], as_index=False)["precip"].max()
    planes = pd.read_csv(folder / "planes.csv")[["tailnum", "seats"]]
    airlines = pd.read_csv(folder / "airlines.csv")
    table = table.merge(weather, how="left").merge(planes, how="left").merge(airlines, how="left")
    delay, is_wet, left = table["dep_delay"], table["precip"].fillna(0) > 0, table["dep_delay"].notna()
    totals = pd.DataFrame({
        "carrier": table["carrier"], "airline": table["name"], "airport": table["origin"], "day": table["date"],
        "flights": 1, "cancelled": ~left, "minutes": delay.fillna(0), "late": delay > 15, "wet_flights": is_wet,
        "wet_left": is_wet & left, "wet_minutes": delay.fillna(0).where(is_wet, 0),
        "seat_hours": delay.fillna(0).clip(lower=0) * table["seats"].fillna(0) / 60,
    })  # fmt: skip
    daily = totals.groupby(["carrier", "airline", "airport", "day"]).sum().astype(float).reset_index()
    rolled = daily.set_index("day").groupby(["carrier", "airline", "airport"]).rolling(f"{days}D").sum().reset_index()
    has_left = (rolled["flights"] - rolled["cancelled"]).replace(0, np.nan)
    rolled["mean_delay"] = rolled["minutes"] / has_left
    rolled["late_share"] = rolled["late"] / has_left
    rolled["wet_mean_delay"] = rolled["wet_minutes"] / rolled["wet_left"].replace(0, np.nan)
    return rolled


def check_flights(folder: Path, output: Path) -> None:
    """Compare with pandas."""
    check_delays(rolling_delays(folder, WINDOW), output)
    assert sorted(reasons(output)) == [
        ("flights.csv.zip", "it has no carrier"), ("flights.csv.zip", "it has not 19 fields as the header has"),
        ("flights.csv.zip", "its day is not in the calendar"),
    ]  # fmt: skip


def check_delays(expected: pd.DataFrame, output: Path) -> None:
    """Compare rolling delays."""
    found = read(output / "delays", "carrier", "airport", "day")
    found["day"] = pd.to_datetime(found["day"])
    expected = expected.sort_values(["carrier", "airport", "day"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected[list(found.columns)], check_dtype=False, rtol=1e-9, atol=1e-9)
    content = (output / "delays.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


# pagerank


def edges() -> list[tuple[int, int]]:
    """A graph with vertices that have no edges out, edges to themselves, and parts that hardly meet."""
    draw = np.random.default_rng(3)
    return [(int(source), int(source * target) % 90) for source, target in draw.integers(0, 70, (400, 2))]


def write_edges(folder: Path) -> Path:
    """The graph as text with comments, as CSV, and as a table."""
    folder.mkdir()
    all_edges = edges()
    text = "# a graph\n" + "\n".join(f"v{source}\tv{target}" for source, target in all_edges[:200])
    (folder / "a.txt").write_text(text + "\n\nv1 v2 v3\nv1\n")
    (folder / "b.csv").write_text("\n".join(f"v{source}, v{target}" for source, target in all_edges[180:300]))
    table = pd.DataFrame(
        [(f"v{source}", f"v{target}") for source, target in all_edges[300:]], columns=["source", "target"]
    )
    pd.concat([table, pd.DataFrame({"source": [None], "target": ["v1"]})]).to_parquet(folder / "c.parquet", index=False)
    return folder


def check_ranks(_folder: Path, output: Path) -> None:
    """Compare with the solution of the equations that the ranks obey."""
    known = sorted({vertex for edge in edges() for vertex in edge})
    place = {vertex: at for at, vertex in enumerate(known)}
    moves = np.zeros((len(known), len(known)))
    for source, target in edges():
        moves[place[target], place[source]] = 1.0
    leaving = moves.sum(axis=0)
    moves = np.where(leaving > 0, moves / np.maximum(leaving, 1), 1 / len(known))
    ranks = np.linalg.solve(np.eye(len(known)) - 0.85 * moves, np.full(len(known), 0.15 / len(known)))
    found = read(output / "ranks", "vertex").set_index("vertex")["rank"]
    expected = pd.Series(ranks, index=[f"v{vertex}" for vertex in known], name="rank").sort_index()
    expected.index.name = "vertex"
    pd.testing.assert_series_equal(found, expected, rtol=0, atol=1e-9, check_index_type=False)
    assert (leaving == 0).any(), "there are vertices without edges"
    assert sorted(reasons(output)) == [
        ("a.txt", "it is not two vertices"), ("a.txt", "it is not two vertices"), ("c.parquet", "it has no source"),
    ]  # fmt: skip


CASES = (
    Case("wordcount", wordcount, wordcount.count_words, ("--longest-row", str(LONGEST_ROW), "--top", str(TOP)),
         "counting", write_lines, check_counts),
    Case("sessions", sessions, sessions.find_sessions, ("--gap", str(GAP), "--lateness", str(LATENESS)), "cutting",
         write_events, check_sessions),
    Case("flights", flights, flights.find_delays, ("--window", str(WINDOW)), "rolling", write_flights, check_flights),
    Case("pagerank", pagerank, pagerank.find_ranks, ("--tolerance", "1e-12"), "loading", write_edges, check_ranks),
)  # fmt: skip
