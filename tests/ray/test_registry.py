"""The registry's thread: it ends with its process, and does nothing for a cluster that is not its own any more."""

import threading

from lineage_stash.on_ray.registry import Registry


class NoPlane:
    """A control plane of which nothing is asked."""


def test_closed_registry_has_no_thread_and_does_nothing_that_it_had_not_begun() -> None:
    done: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        may_end.wait(10)
        done.append("first")

    registry = Registry(NoPlane(), lambda action: action(), "token")  # type: ignore[arg-type]
    registry.ask(first)
    registry.ask(lambda: done.append("second"))
    assert begun.wait(10)
    closing = threading.Thread(target=registry.close)
    closing.start()
    while not registry._closed:
        pass
    may_end.set()
    closing.join(10)
    assert done == ["first"]
    assert "stash registry" not in [thread.name for thread in threading.enumerate()]
