"""What metrics cost: processor time per call of caller and callee together, with and without, in turns.

Each measurement is a cluster of its own, because a process decides when it starts whether it has metrics. Single calls
are made one after the other, so that nothing is shared by several of them.
"""

import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import NamedTuple

import lineage_stash as ray
from lineage_stash.on_ray.metrics import EVERY_S, VARIABLE

SETTINGS = {"without": "0", f"every {EVERY_S:g} s, the default": "", "every 0.1 s": "0.1"}


class Sizes(NamedTuple):
    """How much is measured."""

    turns: int = 5
    single_calls: int = 20_000
    pipelined_calls: int = 200_000


@ray.remote(num_cpus=0)
class Echo:
    """Does nothing, and says how much time of the processor that took."""

    def say(self, value: int) -> int:
        return value

    def processor_s(self) -> float:
        return float(ray.observe(time.process_time))


def measure(sizes: Sizes) -> dict[str, float]:
    """Microseconds of processor time per single call and per pipelined one, in this process and its actor's."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    echo = Echo.remote()
    ray.get([echo.say.remote(number) for number in range(1000)])
    before = time.process_time() + ray.get(echo.processor_s.remote())
    for number in range(sizes.single_calls):
        ray.get(echo.say.remote(number))
    between = time.process_time() + ray.get(echo.processor_s.remote())
    for _ in range(sizes.pipelined_calls // 1000):
        ray.get([echo.say.remote(number) for number in range(1000)])
    after = time.process_time() + ray.get(echo.processor_s.remote())
    ray.shutdown()
    return {
        "single": 1e6 * (between - before) / sizes.single_calls,
        "pipelined": 1e6 * (after - between) / sizes.pipelined_calls,
    }


def main(sizes: Sizes = Sizes()) -> dict[str, dict[str, list[float]]]:  # noqa: B008 - a tuple of numbers
    """Measure in turns, and print the medians with the spread."""
    found: dict[str, dict[str, list[float]]] = {name: {"single": [], "pipelined": []} for name in SETTINGS}
    for _ in range(sizes.turns):
        for name, value in SETTINGS.items():
            environment = {**os.environ, VARIABLE: value or str(EVERY_S)}
            command = [sys.executable, "-m", __spec__.name, json.dumps(sizes)]
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for kind, cost in json.loads(ran.stdout.splitlines()[-1]).items():
                found[name][kind].append(cost)
    for name, costs in found.items():
        words = [f"{kind} {median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for kind, each in costs.items()]
        print(f"metrics {name}: µs of processor time per call: {', '.join(words)}")
    return found


if __name__ == "__main__":
    print(json.dumps(measure(Sizes(*json.loads(sys.argv[1])))))
