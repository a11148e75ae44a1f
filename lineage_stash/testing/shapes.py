# mypy: disable-error-code="attr-defined, no-any-return"
# (mypy does not see what a decorator makes of a class)
"""Programs of the shapes that people write: each has an answer that is known without running it.

Used by `chaos.py`, which runs them while processes die. They use nothing but the public verbs, and a program that gives
another answer, or none, has found a bug. Sizes are small: it is the number of runs that finds things.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import lineage_stash as ray
from lineage_stash.util.actor_pool import ActorPool

PATIENCE_S = 180.0
"""How long an answer may take on a slow machine with everything dying."""


A_WHILE_S = 0.2
"""How long a task takes at least, so that there is something to hit."""

MANY = 1000
"""Chaos may hit the same call again and again, which is no reason to give it up."""


class Shape(NamedTuple):
    """A program, and what it must answer."""

    run: Callable[[random.Random], Any]
    expect: Callable[[random.Random], Any]


def get(refs: Any) -> Any:
    """The values, within patience."""
    return ray.get(refs, timeout=PATIENCE_S)


# a parameter server: workers pull, compute and push


@ray.remote(num_cpus=0, max_crashes=MANY, checkpoint_every=20)
class ParameterServer:
    """Holds weights, and adds gradients to them."""

    def __init__(self, size: int) -> None:
        self.weights = [0] * size
        self.pushes = 0

    def pull(self) -> list[int]:
        return self.weights

    def push(self, gradient: list[int]) -> int:
        self.weights = [weight + slope for weight, slope in zip(self.weights, gradient, strict=True)]
        self.pushes += 1
        return self.pushes


@ray.remote(num_cpus=0, max_crashes=MANY)
class Trainer:
    """Pulls weights, and pushes a gradient that depends on its number and the step alone."""

    def train(self, server: "ray.ActorHandle", number: int, steps: int) -> int:
        for step in range(steps):
            weights = ray.get(server.pull.remote())
            ray.get(server.push.remote([number + step + at for at in range(len(weights))]))
        return steps


TRAINERS, STEPS, WEIGHTS = 3, 8, 4


def _train(_: random.Random) -> list[int]:
    server = ParameterServer.remote(WEIGHTS)
    trainers = [Trainer.remote() for _ in range(TRAINERS)]
    get([trainer.train.remote(server, number, STEPS) for number, trainer in enumerate(trainers)])
    return list(get(server.pull.remote()))


def _trained(_: random.Random) -> list[int]:
    return [sum(number + step + at for number in range(TRAINERS) for step in range(STEPS)) for at in range(WEIGHTS)]


# an actor pool: whoever is free takes the next


@ray.remote(num_cpus=0, max_crashes=MANY)
class Squarer:
    """Squares, and counts what it did."""

    def __init__(self) -> None:
        self.done = 0

    def square(self, number: int) -> int:
        self.done += 1
        time.sleep(0.002)
        return number * number

    def count(self) -> int:
        return self.done


def _pool(draw: random.Random) -> tuple[list[int], int]:
    squarers = [Squarer.remote() for _ in range(3)]
    numbers = [draw.randrange(1000) for _ in range(60)]
    squares = sorted(ActorPool(squarers).map_unordered(lambda actor, number: actor.square.remote(number), numbers))
    return squares, sum(get([squarer.count.remote() for squarer in squarers]))


def _pooled(draw: random.Random) -> tuple[list[int], int]:
    numbers = [draw.randrange(1000) for _ in range(60)]
    return sorted(number * number for number in numbers), len(numbers)


# a tree of actors that create actors


@ray.remote(num_cpus=0, max_crashes=MANY)
class Branch:
    """Creates its children, and adds up what they say."""

    def __init__(self, depth: int, value: int) -> None:
        self.value = value
        self.children = [Branch.remote(depth - 1, 2 * value + at) for at in range(2)] if depth else []

    def total(self) -> int:
        return self.value + sum(ray.get([child.total.remote() for child in self.children]))


def _grow(_: random.Random) -> int:
    root = Branch.remote(2, 1)
    return int(get(root.total.remote()))


def _grown(_: random.Random) -> int:
    return sum(range(1, 8))


# pipelines of refs: nobody waits before the end


@ray.remote(num_cpus=0, max_crashes=MANY)
def parse(line: str) -> list[int]:
    """The numbers of a line."""
    time.sleep(A_WHILE_S)
    return [int(word) for word in line.split()]


@ray.remote(num_cpus=0, max_crashes=MANY)
class Ledger:
    """Adds up, in the order in which things come."""

    def __init__(self) -> None:
        self.total = 0

    def book(self, numbers: list[int]) -> int:
        self.total += sum(numbers)
        return self.total

    def book_later(self, refs: "list[ray.ObjectRef]") -> int:
        return self.book([number for numbers in ray.get(refs) for number in numbers])


def _lines(draw: random.Random) -> list[str]:
    return [" ".join(str(draw.randrange(100)) for _ in range(5)) for _ in range(20)]


def _pipeline(draw: random.Random) -> tuple[list[int], int]:
    first, second = Ledger.remote(), Ledger.remote()
    parsed = [parse.remote(line) for line in _lines(draw)]
    totals = [first.book.remote(ref) for ref in parsed]
    whole = second.book_later.remote(parsed)
    return list(get(totals)), int(get(whole))


def _piped(draw: random.Random) -> tuple[list[int], int]:
    totals: list[int] = []
    for line in _lines(draw):
        totals.append(sum(map(int, line.split())) + (totals[-1] if totals else 0))
    return totals, totals[-1]


# a supervisor that creates workers, and ends those that it does not need any more


@ray.remote(num_cpus=0, max_crashes=MANY)
class Supervisor:
    """Has work done by workers that it replaces after a while."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def work(self, jobs: list[int]) -> list[int]:
        worker = Squarer.remote()
        for number, job in enumerate(jobs):
            if number % 4 == 3:
                ray.kill(worker)
                worker = Squarer.remote()
            self.done.append(ray.get(worker.square.remote(job)))
        return self.done


def _supervise(draw: random.Random) -> list[int]:
    jobs = [draw.randrange(100) for _ in range(10)]
    supervisor = Supervisor.remote()
    return list(get(supervisor.work.remote(jobs)))


def _supervised(draw: random.Random) -> list[int]:
    return [job * job for job in [draw.randrange(100) for _ in range(10)]]


# Monte Carlo pi: tasks that report to an actor


@ray.remote(num_cpus=0, max_crashes=MANY)
class Progress:
    """Counts samples, and how many were inside."""

    def __init__(self) -> None:
        self.inside = self.samples = 0

    def report(self, inside: int, samples: int) -> None:
        self.inside += inside
        self.samples += samples

    def read(self) -> tuple[int, int]:
        return self.inside, self.samples


def _inside(seed: int, samples: int) -> int:
    draw = random.Random(seed)
    return sum(draw.random() ** 2 + draw.random() ** 2 <= 1.0 for _ in range(samples))


@ray.remote(num_cpus=0, max_crashes=MANY)
def sample(progress: "ray.ActorHandle", seed: int, samples: int) -> None:
    """Draw some, and report."""
    time.sleep(A_WHILE_S)
    ray.get(progress.report.remote(_inside(seed, samples), samples))


def _estimate(draw: random.Random) -> tuple[int, int]:
    progress = Progress.remote()
    get([sample.remote(progress, draw.randrange(1 << 30), 500) for _ in range(12)])
    inside, samples = get(progress.read.remote())
    return inside, samples


def _estimated(draw: random.Random) -> tuple[int, int]:
    return sum(_inside(draw.randrange(1 << 30), 500) for _ in range(12)), 12 * 500


# map-reduce: several results per task, each for another reducer

WORDS = ("apple", "pear", "plum", "fig", "quince", "cherry")
REDUCERS = 3


@ray.remote(num_cpus=0, max_crashes=MANY, num_returns=REDUCERS)
def count_words(text: str) -> list[dict[str, int]]:
    """The words of a text, by reducer."""
    time.sleep(A_WHILE_S)
    counted = Counter(text.split())
    return [
        {word: number for word, number in counted.items() if WORDS.index(word) % REDUCERS == at}
        for at in range(REDUCERS)
    ]


@ray.remote(num_cpus=0, max_crashes=MANY)
def merge(*counts: dict[str, int]) -> dict[str, int]:
    """All counts together."""
    time.sleep(A_WHILE_S)
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _texts(draw: random.Random) -> list[str]:
    return [" ".join(draw.choice(WORDS) for _ in range(30)) for _ in range(8)]


def _map_reduce(draw: random.Random) -> dict[str, int]:
    mapped = [count_words.remote(text) for text in _texts(draw)]
    reduced = [merge.remote(*[refs[at] for refs in mapped]) for at in range(REDUCERS)]
    return {word: number for part in get(reduced) for word, number in sorted(part.items())}


def _map_reduced(draw: random.Random) -> dict[str, int]:
    return dict(Counter(" ".join(_texts(draw)).split()))


# batch prediction with state, as a stream


@ray.remote(num_cpus=0, max_crashes=MANY, checkpoint_every=10)
class Predictor:
    """Predicts from a model that is put aside once, and remembers how much it has seen."""

    def __init__(self, model: list[int]) -> None:
        self.model = model
        self.seen = 0

    def predict(self, batches: list[list[int]]) -> Iterator[list[int]]:
        for batch in batches:
            self.seen += len(batch)
            yield [self.model[number % len(self.model)] + self.seen for number in batch]


def _batches(draw: random.Random) -> list[list[int]]:
    return [[draw.randrange(50) for _ in range(6)] for _ in range(10)]


MODEL = [3, 1, 4, 1, 5, 9, 2, 6]


def _predict(draw: random.Random) -> list[list[list[int]]]:
    model = ray.put(MODEL)
    batches = _batches(draw)
    predictors = [Predictor.remote(model) for _ in range(2)]
    streams = [predictor.predict.remote(batches) for predictor in predictors]
    return [[list(get(ref)) for ref in stream] for stream in streams]


def _predicted(draw: random.Random) -> list[list[list[int]]]:
    answers, seen = [], 0
    for batch in _batches(draw):
        seen += len(batch)
        answers.append([MODEL[number % len(MODEL)] + seen for number in batch])
    return [answers, answers]


SHAPES: dict[str, Shape] = {
    "parameter server": Shape(_train, _trained),
    "actor pool": Shape(_pool, _pooled),
    "tree of actors": Shape(_grow, _grown),
    "pipelines of refs": Shape(_pipeline, _piped),
    "supervisor": Shape(_supervise, _supervised),
    "Monte Carlo pi": Shape(_estimate, _estimated),
    "map-reduce": Shape(_map_reduce, _map_reduced),
    "batch prediction": Shape(_predict, _predicted),
}
