import pytest

import lineage_stash as ray
from lineage_stash.testing import failures

pytest_plugins = ["lineage_stash.testing.pytest_plugin"]


@ray.remote
class Counter:
    def __init__(self):
        self.value = 0

    def add(self):
        self.value += 1
        return self.value


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init()
    yield
    ray.shutdown()


def test_counter_is_killed_and_counts_on():
    counter = Counter.options(name="counter-1").remote()
    answers = []
    with failures.inject("kill:actor:counter-1@50%", progress=lambda: len(answers) / 2000) as injector:
        while len(answers) < 2000:
            answers.append(ray.get(counter.add.remote()))
    assert answers == list(range(1, 2001))
    assert [(caused.what, caused.target) for caused in injector.injected] == [("kill:actor", "counter-1")]


def test_counter_stands_still_while_the_store_is_away(inject_failures):
    counter = Counter.options(name="counter-2").remote()
    assert ray.get(counter.add.remote()) == 1
    injector = inject_failures("stop:actor:counter-2@0sfor200ms, pause:replica:all@0sfor200ms")
    count = 1
    while len(injector.injected) < 2:
        count += 1
        assert ray.get(counter.add.remote()) == count
