"""The first job: its result is the truth, whoever is killed; what its user can repair is told in one line."""

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray as plain_ray

from lineage_stash.on_spark import processes
from lineage_stash.testing.inject_nodes import local_nodes
from raydp_jobs.inputs import JobError
from raydp_jobs.output import Output, OutputError
from raydp_jobs.wordcount import main
from tests.spark.jobs import counts_in, run, started, truth, write_texts

needs_spark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
KILLED = -9


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster that outlives the jobs."""
    plain_ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield plain_ray.get_runtime_context().gcs_address
    plain_ray.shutdown()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_texts(tmp_path_factory.mktemp("job") / "texts"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for next to nothing."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if subprocess.run(mounting, capture_output=True, timeout=10).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=10)


class TestOnSpark:
    pytestmark = needs_spark

    def test_nobody_is_killed_and_every_word_bad_row_and_file_is_accounted_for(
        self, address: str, texts: str, tmp_path: Path
    ) -> None:
        output = tmp_path / "out"
        status, printed = run(address, texts, "--output", str(output), "--longest-row", "4000", "--top", "3")
        assert status == 0, printed
        assert counts_in(output) == truth()
        top = pq.read_table(output / "top.parquet").to_pylist()
        best = sorted(truth().items(), key=lambda pair: (-pair[1], pair[0]))[:3]
        assert top == [{"rank": at + 1, "word": word, "count": count} for at, (word, count) in enumerate(best)]
        bad = pq.read_table(output / "bad").to_pylist()
        assert sorted((Path(row["file"]).name, row["reason"]) for row in bad) == [
            ("bad.txt", "it is longer than 4000 characters"), ("bad.txt", "it is not UTF-8"),
            ("rows.parquet", "it has no text"),
        ]  # fmt: skip
        summary = json.loads((output / "summary.json").read_text())
        assert (summary["files"], summary["words"], summary["bad_rows"]) == (4, sum(truth().values()), 3)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_killed_actor_and_executor_change_nothing(self, address: str, texts: str, tmp_path: Path) -> None:
        arguments = (texts, "--output", str(tmp_path / "out"), "--longest-row", "4000")
        status, printed = run(address, *arguments, "--kill", "executor@1", "--kill", "actor@2")
        assert status == 0, printed
        assert "kill -9: executor" in printed
        assert "kill -9: actor" in printed
        assert counts_in(tmp_path / "out") == truth()

    @pytest.mark.long
    def test_killed_master_costs_another_application_and_changes_nothing(
        self, address: str, texts: str, tmp_path: Path
    ) -> None:
        arguments = (texts, "--output", str(tmp_path / "out"), "--longest-row", "4000", "--partitions", "40")
        status, printed = run(address, *arguments, "--kill", "master@1")
        assert status == 0, printed
        assert "starting another one" in printed
        assert counts_in(tmp_path / "out") == truth()

    def test_killed_driver_is_started_again_and_counts_nothing_twice(
        self, address: str, texts: str, tmp_path: Path
    ) -> None:
        arguments = (texts, "--output", str(tmp_path / "out"), "--longest-row", "4000", "--run-id", "again")
        status, printed = run(address, *arguments, "--kill", "driver@3")
        assert status == KILLED, printed
        assert not (tmp_path / "out").exists()
        status, printed = run(address, *arguments, "--kill", "driver@3")
        assert status == 0, printed
        assert "resumed the run 'again'" in printed
        assert counts_in(tmp_path / "out") == truth()
        files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
        status, printed = run(address, *arguments)
        assert status == 0, printed
        assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}

    @pytest.mark.long
    def test_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(
        self, address: str, texts: str, small_disk: Path
    ) -> None:
        output = small_disk / "out"
        arguments = (texts, "--output", str(output), "--longest-row", "4000", "--run-id", "full", "--quiet")
        status, printed = run(address, *arguments)
        assert status == 1, printed
        (line,) = [line for line in printed.splitlines() if "cannot write" in line]
        assert line.endswith(f"cannot write to {output}: No space left on device")
        assert "Traceback" not in printed
        assert not output.exists()
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True, timeout=10)
        status, printed = run(address, *arguments)
        assert status == 0, printed
        assert "resumed the run 'full'" in printed
        assert counts_in(output) == truth()
        assert [path.name for path in small_disk.iterdir()] == ["out"]

    def test_broken_file_is_named_in_one_line_and_leaves_no_output(self, address: str, tmp_path: Path) -> None:
        folder = write_texts(tmp_path / "texts", lines=100)
        packed = folder / "packed.txt.gz"
        packed.write_bytes(packed.read_bytes()[:-50])
        status, printed = run(address, str(folder), "--output", str(tmp_path / "out"), "--quiet")
        assert status == 1
        (line,) = [line for line in printed.splitlines() if "the job has failed" in line]
        assert str(packed) in line
        assert [path.name for path in tmp_path.iterdir()] == ["texts"]


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lost_node_takes_executor_and_counters_with_it_and_changes_nothing(texts: str, tmp_path: Path) -> None:
    with local_nodes(3) as nodes:
        arguments = (texts, "--output", str(tmp_path / "out"), "--longest-row", "4000", "--partitions", "40")
        with started(nodes.address, *arguments) as job:
            job.read_until("counting: 1 of")
            executors = {each.pid for each in processes.find_processes(script_pid=job.process.pid)}
            doomed = [node for node in nodes.others if executors & set(nodes.processes_of(node))]
            nodes.kill(*(doomed[:1] or nodes.others[:1]))
            assert job.end() == 0, job.printed
        assert counts_in(tmp_path / "out") == truth()


def test_missing_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "nothing"), "--output", str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"no input: there is no {tmp_path / 'nothing'}")


def test_file_that_spark_would_pass_over_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "_words.txt").write_text("some words")
    assert main([str(tmp_path / "_words.txt"), "--output", str(tmp_path / "out")]) == 1
    assert "begins with a dot or an underscore" in capsys.readouterr().err


def test_empty_folder_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert main([str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 1
    assert "there is no file in" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["/proc/out", "file/out"])
def test_output_that_cannot_be_written_is_one_line(
    place: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("some words")
    assert main([str(tmp_path / "file"), "--output", os.path.join(tmp_path, place)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot write to" in line


def test_output_of_others_is_not_touched(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("some words")
    (tmp_path / "out").mkdir()
    assert main([str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 1
    assert "is there already" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def test_file_that_finds_no_room_is_told_and_nothing_appears(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "out"), "run")
    output.begin()
    table = pa.table({"number": list(range(10_000))})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OutputError, match=r"cannot write to .*/out: File too large$"):
            output.write("counts/0.parquet", table)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out").exists()


def test_output_that_has_appeared_meanwhile_is_left_alone(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "out"), "run")
    output.begin()
    Output(str(tmp_path / "out"), "another").begin()
    (tmp_path / "out").mkdir()
    with pytest.raises(JobError, match="is there already"):
        output.publish({})


def test_unknown_victim_is_told_what_there_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("some words")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--kill", "everybody@1"])
    assert "executor@3" in capsys.readouterr().err
