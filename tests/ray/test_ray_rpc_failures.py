"""Ray's own calls between its processes fail, are repeated and lose their answers: a program still comes out right.

`RAY_testing_rpc_failure` has Ray's processes lose, by method, requests before they are sent, answers that were given,
and answers while the request is still being served. What Ray then repeats must be done once, and what it does not
repeat must be asked for again: the call that has a host begin its life, for one.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CONTROL_PLANE = ("InternalKVPut", "InternalKVGet", "InternalKVMultiGet")
ACTORS = ("RegisterActor", "CreateActor", "GetActorInfo", "GetNamedActorInfo", "KillActorViaGcs")
BETWEEN_PROCESSES = (
    "CoreWorkerService.grpc_client.PushTask", "CoreWorkerService.grpc_client.GetObjectStatus",
    "CoreWorkerService.grpc_client.WaitForActorRefDeleted", "NodeManagerService.grpc_client.RequestWorkerLease",
    "NodeManagerService.grpc_client.ReturnWorkerLease", "NodeManagerService.grpc_client.KillLocalActor",
)  # fmt: skip

PROGRAM = """
import lineage_stash as ray
from lineage_stash.testing import inject

PATIENCE_S = 120.0


@ray.remote(num_cpus=0, checkpoint_every=20)
class Total:
    def __init__(self):
        self.total = 0

    def add(self, number):
        self.total += number
        return self.total

    def have_doubled(self, count):
        return ray.get([double.remote(number) for number in range(count)])


@ray.remote(num_cpus=0)
def double(number):
    return 2 * number


ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
totals = [Total.remote() for _ in range(2)]
refs = [totals[number % 2].add.remote(double.remote(1)) for number in range(4)]
refs += [totals[number % 2].add.remote(1) for number in range(200)]
ray.get(refs[:50], timeout=PATIENCE_S)
inject.kill_process(totals[0])
refs += [totals[number % 2].add.remote(1) for number in range(200)]
answer = {
    "doubled": ray.get(totals[0].have_doubled.remote(3), timeout=PATIENCE_S),
    "last": ray.get(refs, timeout=PATIENCE_S)[-2:],
    "recoveries": inject.recoveries_of(totals[0]),
}
print("answer", answer)
ray.shutdown()
"""


def failures() -> str:
    """A few failures of each kind in each process: enough to be met, and few enough to come to an end."""
    once = {"num_failures": 1, "num_lower_bound_resp_failures": 1}
    some = {"num_failures": 3, "req_failure_prob": 15, "resp_failure_prob": 15, "in_flight_failure_prob": 15}
    return json.dumps({
        **{f"ray::rpc::InternalKVGcsService.grpc_client.{name}": once for name in CONTROL_PLANE},
        **{f"ray::rpc::ActorInfoGcsService.grpc_client.{name}": some for name in ACTORS},
        **dict.fromkeys(BETWEEN_PROCESSES, some),
    })  # fmt: skip


@pytest.mark.timeout(300)
def test_program_whose_calls_within_ray_fail_comes_out_right() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "RAY_testing_rpc_failure": failures()},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    told = ran.stdout + ran.stderr
    assert ran.returncode == 0, told
    assert "answer {'doubled': [0, 2, 4], 'last': [204, 204], 'recoveries': 1}" in ran.stdout, told
    assert "Inject RPC" in told, "Ray knows the variable no more, or reads it otherwise"
