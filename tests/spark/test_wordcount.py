"""The first job from its command line: what its user can repair is told in one line, and can be resumed after it."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import ray as plain_ray

from raydp_jobs.inputs import JobError
from raydp_jobs.output import Output, OutputError
from raydp_jobs.wordcount import main
from tests.spark.jobs import counts_in, run, truth, write_texts

needs_spark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


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
