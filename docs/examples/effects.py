import os
import signal
import sqlite3

import lineage_stash as ray

ray.init()
BOOK = os.path.abspath("payments.db")


def write(statement, *values):
    with sqlite3.connect(BOOK) as book:
        return book.execute(statement, values).fetchone()


@ray.effect
def transfer(account, amount, *, key):
    write("insert or ignore into paid values (?, ?, ?)", str(key), account, amount)


@ray.remote
class Teller:
    def __init__(self):
        self.paid = 0

    def pay(self, account, amount):
        transfer(account, amount)
        self.paid += amount
        return self.paid

    def pid(self):
        return ray.observe(os.getpid)


write("create table paid (key text primary key, account text, amount integer)")
teller = Teller.remote()
pid = ray.get(teller.pid.remote())
refs = [teller.pay.remote("ada", 1) for _ in range(100)]
ray.get(refs[30])

os.kill(pid, signal.SIGKILL)

print(ray.get(refs[-1]))
print(*write("select sum(amount) from paid"))
