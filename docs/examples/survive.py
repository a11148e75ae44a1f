import os
import signal

import lineage_stash as ray  # it was: import ray

ray.init()


@ray.remote
class Counter:
    def __init__(self):
        self.value = 0

    def add(self, amount):
        self.value += amount
        return self.value

    def pid(self):
        return ray.observe(os.getpid)  # what may differ between two runs is asked for through observe


counter = Counter.remote()
print(ray.get([counter.add.remote(1) for _ in range(1000)])[-1])

os.kill(ray.get(counter.pid.remote()), signal.SIGKILL)

print(ray.get([counter.add.remote(1) for _ in range(1000)])[-1])
