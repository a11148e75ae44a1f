"""The benchmarks run, and measure what they say; how fast anything is, no test asserts."""

import pytest

from benchmarks import against_ray, core_path, graph, nodes, replicated, spark, tasks


@pytest.mark.parametrize("encoded", [False, True])
def test_core_path_runs_every_call_and_commits_it(encoded: bool) -> None:
    pair = core_path.Pair(encoded=encoded)
    assert core_path.cost_microseconds(pair, 12_000) > 0
    assert pair.calls == 12_000
    assert pair.actor.lineage.upper == 12_000
    assert pair.actor.durability.checkpointed > 0
    assert pair.actor.lineage.committed[pair.actor.id] > 11_000


def test_benchmark_prints_every_figure_beside_its_bar(capsys: pytest.CaptureFixture[str]) -> None:
    core_path.main(total=21_000)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all("bar" in line for line in lines)


@pytest.mark.parametrize("needs_grow", [False, True])
def test_entry_in_a_run_costs_at_most_sixteen_bytes(needs_grow: bool) -> None:
    assert core_path.entry_bytes(1000, needs_grow=needs_grow) <= 16


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_benchmark_against_plain_ray_measures_every_bar(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = against_ray.Sizes(
        windows=1, single_calls=20, pipelined_calls=300, chain_calls=3, large_calls=3, replayed_calls=500,
        few_calls=1000, many_calls=2000, state_bytes=1_000_000, recoveries=1, pause_s=0.0,
    )  # fmt: skip
    figures = against_ray.main(sizes)
    assert len({figure.measure for figure in figures}) == len(figures) == 13
    assert all(figure.bar in capsys.readouterr().out for figure in figures[:1])


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_benchmark_of_the_replicated_store_measures_every_bar() -> None:
    sizes = replicated.Sizes(
        entries=30_000, early_entries=1000, window_entries=2000, read_back_entries=5000, rate=500, load_s=0.5,
        gentle_rate=200, state_bytes=4_000_000, long_calls=20_000,
    )  # fmt: skip
    figures = replicated.measure(sizes)
    assert len({figure.what for figure in figures}) == len(figures) == 9
    assert next(figure for figure in figures if figure.what.startswith("calls counted")).reached


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_benchmark_of_lost_nodes_measures_every_bar() -> None:
    figures = nodes.measure(nodes.Sizes(nodes=3, rounds=1, many=1, plain_patience_s=0.0))
    assert len({figure.what for figure in figures}) == len(figures) == 4
    assert all(figure.seconds for figure in figures)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_benchmark_of_tasks_measures_every_bar() -> None:
    figures = tasks.measure(tasks.Sizes(windows=1, single_tasks=5, pipelined_tasks=50, pause_s=0.0))
    assert len({figure.measure for figure in figures}) == len(figures) == 3


def test_actors_that_a_request_may_come_to_from_another_are_those_on_the_ways_of_requests_through_it() -> None:
    sizes = graph.Sizes(layers=6, columns=8)
    victim = (2, 5)
    ways = [graph.way(request, sizes) for request in range(5000)]
    seen = {cell for way in ways if victim in way for cell in way[way.index(victim) :]}
    assert seen == graph.reached_from(victim, sizes)
    assert {way[0] for way in ways} == {(0, column) for column in range(8)}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_benchmark_of_a_graph_counts_every_request_once() -> None:
    unaffected, others, idle = graph.measure(graph.Sizes(layers=2, columns=3, rate=20, seconds=2, warm_up_s=1))
    assert sum(len(each) for outcome in (unaffected, others) for each in outcome) == 80
    assert all(each for outcome in (unaffected, others) for each in outcome)
    assert 0 <= idle <= 1


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # RayDP's own way, which it compares with, is full of them
def test_benchmark_of_spark_measures_every_bar() -> None:
    figures = spark.measure(spark.Sizes(rows=20_000, partitions=4, windows=1, pause_s=0.0, few_rows=2000))
    assert len({figure.measure for figure in figures}) == len(figures) == 3
