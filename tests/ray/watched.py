"""A script whose Ray logs JSON, traces, and has its metrics off, and that loses two actors and the services.

Run as `python -m tests.ray.watched FOLDER`; each process of its cluster appends the spans that it ends to a file of its
own in that folder. Its last line on stdout is what it saw, as JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence

import ray as plain_ray
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

import lineage_stash as ray
from lineage_stash.on_ray.api import current
from lineage_stash.testing import inject

FOLDER = "SPANS_FOLDER"


class Files(SpanExporter):
    """One file for each process, one line for each span."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with open(f"{os.environ[FOLDER]}/{os.getpid()}", "a", encoding="utf-8") as file:
            for span in spans:
                assert span.context is not None
                parent = None if span.parent is None else span.parent.span_id
                said = [span.name, span.context.trace_id, span.context.span_id, parent, span.status.status_code.name]
                file.write(json.dumps([*said, dict(span.attributes or {})]) + "\n")
        return SpanExportResult.SUCCESS


def set_up() -> None:
    """What Ray runs in every process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Files()))
    trace.set_tracer_provider(provider)


@ray.remote(num_cpus=0)
class Inner:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        with trace.get_tracer("the user's").start_as_current_span("adding"):
            self.count += 1
        return self.count

    def fail(self) -> None:
        raise ValueError("on purpose")


@ray.remote(num_cpus=0)
class Outer:
    def __init__(self, inner: "ray.ActorHandle") -> None:
        self.inner = inner

    def add(self) -> int:
        return int(ray.get(self.inner.add.remote()))


@ray.remote
def double(value: int) -> int:
    return 2 * value


def kill_services() -> None:
    """End the coordinator and the replica, and wait until both are back."""
    before = inject.coordinator_pid(), inject.replica_pid()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    inject.wait_until(lambda: inject.coordinator_pid() != before[0] and inject.replica_pid() != before[1], "services")


def main() -> None:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
             logging_config=plain_ray.LoggingConfig(encoding="JSON"),
             _tracing_startup_hook="tests.ray.watched:set_up",
             _system_config={"enable_metrics_collection": False})  # fmt: skip
    inner = Inner.remote()
    outer = Outer.remote(inner)
    with trace.get_tracer("the user's").start_as_current_span("request") as span:
        request = span.get_span_context()
        seen = [ray.get(outer.add.remote()) for _ in range(3)]
        failed = ray.wait([inner.fail.remote()])[0]
        doubled = ray.get(double.remote(4))
    inject.kill_process(inner)
    inject.kill_process(outer)
    seen += [ray.get(outer.add.remote()) for _ in range(2)]
    plane = current().process.plane
    inject.wait_until(lambda: len(plane.keys("recoveries/")) == 2, "both recoveries are on record")
    kill_services()
    logs = plain_ray.get_runtime_context().worker.node.get_logs_dir_path()
    ray.shutdown()
    print(json.dumps({"trace": request.trace_id, "span": request.span_id, "seen": seen, "doubled": doubled,
                      "failed": len(failed), "logs": logs}))  # fmt: skip


if __name__ == "__main__":
    os.environ[FOLDER] = sys.argv[1]
    main()
