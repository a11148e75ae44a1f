"""The workloads, by name."""

from types import ModuleType

from benchmarks.suite.workloads import allreduce, calls, effects, graph, pipeline, ring, wordcount

WORKLOADS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (ring, wordcount, effects, calls, allreduce, graph, pipeline)
}
