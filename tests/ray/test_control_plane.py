"""The control plane while the GCS is away, hangs, or has been replaced: one kind of error, and no question twice."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import AuthenticationError, RaySystemError, RpcError
from ray.experimental import internal_kv

from lineage_stash.core.history import Decision
from lineage_stash.core.ids import PeerId, Round
from lineage_stash.on_ray import control_plane
from lineage_stash.on_ray.control_plane import ControlPlane, ControlPlaneAway, ControlPlaneReplaced
from lineage_stash.on_ray.registry import Registry

UNANSWERED = RpcError("Timed out while waiting for GCS to become available.", rpc_code=4)
REPLACED = AuthenticationError("RPC error: WrongClusterID: Perhaps the client is accessing GCS after it has restarted.")


class Gcs:
    """A GCS in memory, which raises what it is told to, once each, before or after it has done what was asked."""

    def __init__(self) -> None:
        self.facts: dict[bytes, bytes] = {}
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.asked = 0

    def _answer(self, action: Callable[[], Any], timeout: float) -> Any:
        assert timeout == control_plane.REQUEST_S, "a request without a limit"
        self.asked += 1
        if self.before:
            raise self.before.pop(0)
        answer = action()
        if self.after:
            raise self.after.pop(0)
        return answer

    def internal_kv_get(self, key: bytes, _: bytes, timeout: float) -> bytes | None:
        return self._answer(lambda: self.facts.get(key), timeout)  # type: ignore[no-any-return]

    def internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, _: bytes, timeout: float) -> int:
        def action() -> int:
            added = key not in self.facts
            if added or overwrite:
                self.facts[key] = value
            return int(added)

        return self._answer(action, timeout)  # type: ignore[no-any-return]

    def internal_kv_keys(self, prefix: bytes, _: bytes, timeout: float) -> list[bytes]:
        return self._answer(  # type: ignore[no-any-return]
            lambda: [key for key in self.facts if key.startswith(prefix)], timeout
        )


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Gcs:
    made = Gcs()
    monkeypatch.setattr(internal_kv, "global_gcs_client", made)
    return made


def test_process_without_a_cluster_has_no_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_kv, "global_gcs_client", None)
    with pytest.raises(ControlPlaneAway, match="call init"):
        ControlPlane()


def test_gcs_that_is_away_for_a_while_is_asked_again(gcs: Gcs) -> None:
    gcs.before = [UNANSWERED, UNANSWERED]
    gcs.facts[b"key"] = b"value"
    assert ControlPlane().get("key") == b"value"
    assert gcs.asked == 3


def test_gcs_that_stays_away_is_told_when_patience_ends(gcs: Gcs) -> None:
    plane = ControlPlane()
    plane.patience_s = 0.0
    gcs.before = [UNANSWERED]
    with pytest.raises(ControlPlaneAway, match="did not answer"):
        plane.put("key", b"value")


def test_put_if_absent_that_was_done_but_not_answered_finds_its_own_value(gcs: Gcs) -> None:
    gcs.after = [UNANSWERED]
    assert ControlPlane().put_if_absent("key", b"token") == b"token"
    assert ControlPlane().put_if_absent("key", b"other") == b"token"


@pytest.mark.parametrize("error", [RaySystemError("client is shut down"), OSError("broken"), RuntimeError("odd")])
def test_any_other_error_of_the_client_is_told_at_once(gcs: Gcs, error: Exception) -> None:
    gcs.before = [error]
    with pytest.raises(ControlPlaneAway):
        ControlPlane().keys("prefix")
    assert gcs.asked == 1


def test_gcs_that_has_lost_its_facts_is_told_apart(gcs: Gcs) -> None:
    gcs.before = [REPLACED]
    with pytest.raises(ControlPlaneReplaced, match="Redis"):
        ControlPlane().get("key")


class SlowPlane:
    """A control plane that answers when it is told to."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked: list[str] = []
        self.patience_s = 60.0

    def get(self, key: str) -> None:
        self.asked.append(key)
        assert self.may_answer.wait(10)

    def put(self, key: str, _: bytes) -> None:
        self.get(key)

    def put_if_absent(self, key: str, value: bytes) -> bytes:
        self.get(key)
        return value

    def keys(self, _: str) -> list[str]:
        return []

    def get_all(self, _: str) -> dict[str, bytes]:
        return {}


def wait_for_all(registry: Registry) -> None:
    """Wait until everything that was asked has been answered."""
    done = threading.Event()
    registry.ask(done.set)
    assert done.wait(10)


def test_what_is_asked_at_every_tick_is_not_asked_while_it_is_under_way() -> None:
    plane = SlowPlane()
    answers: list[object] = []
    registry = Registry(plane, lambda action: action(), "token")  # type: ignore[arg-type]
    decision = Decision(Round(1), (), (), "token")
    for _ in range(1000):
        registry.has_retired(PeerId("peer"), answers.append)
        registry.fetch_decisions(0, answers.append)
        registry.publish(decision, answers.append)
        registry.open_round(Round(1), (), answers.append)
    plane.may_answer.set()
    wait_for_all(registry)
    assert answers == [False, (), decision, ()]
    registry.has_retired(PeerId("peer"), answers.append)
    wait_for_all(registry)
    registry.close()
    assert len(plane.asked) == 5


def test_registry_tells_that_the_cluster_was_replaced() -> None:
    told: list[str] = []
    was_told = threading.Event()

    def raise_replaced() -> None:
        raise ControlPlaneReplaced("another cluster")

    def post(action: Callable[[], None]) -> None:
        action()
        was_told.set()

    registry = Registry(SlowPlane(), post, "token")  # type: ignore[arg-type]
    registry.on_replaced = told.append
    registry.ask(raise_replaced)
    assert was_told.wait(10)
    registry.close()
    assert told == ["another cluster"]
