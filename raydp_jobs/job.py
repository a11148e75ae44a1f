"""What all jobs have in common, so that one is a page of code: a command line, a run, Spark, an output, and an end.

Rules:
- A job is a function from a `Job` to its summary. It makes calls through the public API and writes through `output`.
- What is said of a command line and of input files before anything is started, `check` says.
- Its run id is `--run-id`, or the id under which it was submitted to Ray; submitted again under the same run id it goes
  on where it was. Without either it cannot be resumed.
- Whatever its user has to repair is one line on standard error, and exit status 1. What can be resumed after it was
  repaired is left so; what fails every time ends its run.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lineage_stash as ray
from lineage_stash.exceptions import RayError
from lineage_stash.on_spark import SparkNotStarted, SparkOnRay, StageFailed, spark_session
from raydp_jobs.failures import Failures, parse_failure
from raydp_jobs.inputs import Inputs, JobError, find_inputs, find_unreadable
from raydp_jobs.output import Output
from raydp_jobs.progress import Bar

Summary = dict[str, Any]

START_S = 240.0
"""How long Spark may take to start: nobody sits and waits for a job, and the machine may have other work to do."""

REFUSALS = (ray.RunFinishedError, ray.RunInUseError, ray.NondeterminismError)


class Job:
    """One run of a job, as its function sees it."""

    def __init__(self, arguments: argparse.Namespace, inputs: Inputs, session: SparkOnRay, output: Output) -> None:
        self.arguments = arguments
        self.inputs = inputs
        self.session = session
        self.output = output
        self.actors: list[Any] = []
        """The actors of the job, for those who kill some."""
        self._failures = Failures(arguments.kill, lambda: self.actors)
        self._steps = 0

    def follow(self, refs: Sequence[Any], what: str) -> Iterator[Any]:
        """The values of refs as they come, with a bar; each is a step."""
        waiting = list(refs)
        steps = self.steps(what, len(waiting))
        while waiting:
            next(steps)
            ready, waiting = ray.wait(waiting, num_returns=1)
            yield ray.get(ready[0])
        next(steps, None)

    def steps(self, what: str, total: int) -> Iterator[int]:
        """Count steps of anything, with a bar; a step is done when the next one is asked for."""
        with Bar(what, total, quiet=self.arguments.quiet) as bar:
            for number in range(total):
                yield number
                bar.advance()
                self._steps += 1
                self._failures.after(self._steps)

    def write_parts(self, name: str, parts: Sequence[Any]) -> int:
        """Write tables, or those that refs stand for, as the files of one folder, without empty ones; how many rows."""
        rows = 0
        for number, part in enumerate(parts):
            table = ray.get(part) if isinstance(part, ray.ObjectRef) else part
            rows += table.num_rows
            if table.num_rows:
                self.output.write(f"{name}/{number:05}.parquet", table)
        return rows


def make_parser(name: str, description: str, *, inputs: Sequence[str] = (),
                what: str = "CSV (.gz and .zip too) or Parquet") -> argparse.ArgumentParser:  # fmt: skip
    """The options that all jobs have; `inputs` are those that are read where none are given."""
    parser = argparse.ArgumentParser(f"python -m raydp_jobs.{name}", description=description)
    parser.add_argument("inputs", nargs="*" if inputs else "+", default=list(inputs), help=f"files and folders: {what}")
    parser.add_argument("--output", required=True, help="the folder that the results appear in; it must not be there")
    parser.add_argument("--run-id", help="start the job again under the same id to resume it (default: the submission "
                        "id of `ray job submit`; without either it cannot be resumed)")  # fmt: skip
    spark = parser.add_argument_group("Spark")
    spark.add_argument("--executors", type=int, default=1, help="how many executors (%(default)s)")
    spark.add_argument("--executor-cores", type=int, help="cores of each (default: what the cluster has, but one)")
    spark.add_argument("--executor-memory", help="memory of each, such as 2g (default: what fits)")
    spark.add_argument("--partitions", type=int, default=16, help="in how many parts results are made (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the summary")
    parser.add_argument("--kill", action="append", default=[], type=parse_failure, metavar="WHO@STEP",
                        help="kill -9 a process on the way to see it recover: actor@3, executor@5, master@5, spark@5, "
                        "driver@7; may be repeated")  # fmt: skip
    return parser


def run_job(parser: argparse.ArgumentParser, work: Callable[[Job], Summary], argv: Sequence[str] | None = None, *,
            check: Callable[[Inputs], None] = lambda _: None) -> int:  # fmt: skip
    """Run a job from its command line; its exit status. `check` refuses inputs before anything is started."""
    arguments = parser.parse_args(argv)
    try:
        return _run(arguments, work, check)
    except (JobError, SparkNotStarted, *REFUSALS, ConnectionError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace, work: Callable[[Job], Summary], check: Callable[[Inputs], None]) -> int:
    began_s = time.time()
    run_id = arguments.run_id or submission_id()
    output = Output(arguments.output, run_id or f"process-{os.getpid()}")
    before = output.finished()
    if before is not None:
        show(before, output)
        return 0
    check(find_inputs(arguments.inputs))
    output.begin()
    with ray.init(run_id=run_id, log_to_driver=False, logging_level="warning"):
        try:
            summary = _work(arguments, output, work, began_s)
        except (StageFailed, RayError) as error:
            output.discard()
            print(f"the job has failed: {find_unreadable(arguments.inputs) or cause_of(error)}", file=sys.stderr)
            return 1
    show(summary, output)
    return 0


def _work(arguments: argparse.Namespace, output: Output, work: Callable[[Job], Summary], began_s: float) -> Summary:
    with spark_session("job", executors=arguments.executors, executor_cores=arguments.executor_cores,
                       executor_memory=arguments.executor_memory, timeout_s=START_S,
                       progress=False) as session:  # fmt: skip
        summary = work_in(session, arguments, output, work, began_s)
        session.release()
    return summary


def work_in(session: SparkOnRay, arguments: argparse.Namespace, output: Output, work: Callable[[Job], Summary],
            began_s: float) -> Summary:  # fmt: skip
    """Do the work of a job in a session that is there, and make its output appear."""
    inputs = Inputs(*ray.observe(find_inputs, arguments.inputs))
    found = work(Job(arguments, inputs, session, output))
    seconds = round(time.time() - began_s, 1)
    summary = {"files": inputs.count, "input_bytes": inputs.size_bytes, **found, "seconds": seconds}
    output.publish(summary)
    return summary


def submission_id() -> str | None:
    """Under which id Ray's job server has started this process."""
    try:
        submitted = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    except ValueError:
        return None
    found = submitted.get("metadata", {}).get("job_submission_id")
    return None if found is None else str(found)


CAUSES = (
    re.compile(r"(Spark did not start.*)"),
    re.compile(r"(PartitionChanged: .*)"),
    re.compile(r"Caused by: (.*)"),
    re.compile(r"(the Spark stage .*)"),
)
"""What in a long story is the thing to know, the best one first."""


def cause_of(error: BaseException) -> str:
    """Why something has failed, in one line."""
    story = str(error)
    found = [matches[-1] for cause in CAUSES if (matches := cause.findall(story))]
    lines = [line.strip() for line in story.splitlines() if line.strip()]
    return str((found or lines[-1:] or [repr(error)])[0])


def show(summary: Summary, output: Output) -> None:
    """What the job has done, for people."""
    for name, value in summary.items():
        text = f"{value:,}" if isinstance(value, int) else value
        print(f"{name.replace('_', ' '):>16}  {text}")
    print(f"{'output':>16}  {output.path}", flush=True)
