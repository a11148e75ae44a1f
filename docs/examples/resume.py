import os
import signal
import time

import lineage_stash as ray

ray.init(run_id=os.environ.get("RUN", "nightly"))


@ray.remote
class Ledger:
    def __init__(self):
        self.total = 0

    def add(self, amount):
        self.total += amount
        return self.total


ledger = Ledger.remote()
print("began at", time.time(), flush=True)
for amount in range(10):
    print(amount, ray.get(ledger.add.remote(amount)), flush=True)
    if amount == 4 and "CRASH" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
