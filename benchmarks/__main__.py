"""`python -m benchmarks suite` measures this and other systems, and `report` draws that (`docs/benchmarks.md`).

`python -m benchmarks [PART ...]` measures parts of this system, each figure beside its bar; without a name, all.
"""

import sys
from importlib import import_module

from benchmarks import (
    against_ray,
    checkpoint_bytes,
    core_path,
    graph,
    metrics_cost,
    nodes,
    replicated,
    spark,
    store_engines,
    tasks,
)

PARTS = {
    "core": core_path.main,
    "store": store_engines.main,
    "checkpoint": checkpoint_bytes.main,
    "replicated": replicated.main,
    "nodes": nodes.main,
    "tasks": tasks.main,
    "graph": graph.main,
    "spark": spark.main,
    "metrics": metrics_cost.main,
    "ray": against_ray.main,
}

COMMANDS = {"suite": "benchmarks.suite.command", "report": "benchmarks.suite.report.command"}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        sys.exit(import_module(COMMANDS[sys.argv[1]]).main(sys.argv[2:]))
    names = sys.argv[1:] or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for name in names:
        PARTS[name]()
