"""Actors of the run that the commands look at, and other code for one of them."""

import os
import time

import lineage_stash as ray


class Till:
    """Adds up, and says which process it did that in."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def pid(self) -> int:
        return int(ray.observe(os.getpid))


@ray.effect
def send_bill(amount: int, key: object = None) -> str:
    """Says what a service would do with its key."""
    return f"{amount} under {key}"


class CappedTill(Till):
    """Adds up to a limit: other code, with which the same history comes out otherwise."""

    def add(self, amount: int) -> int:
        self.total = min(self.total + amount, 20)
        return self.total


class Shop:
    """Takes orders, notes when, and has them added up."""

    def __init__(self, till: "ray.ActorHandle") -> None:
        self.till = till
        self.orders: list[float] = []

    def order(self, amount: int) -> int:
        self.orders.append(time.time())
        return int(ray.get(self.till.add.remote(amount)))

    def bill(self, amount: int) -> str:
        return str(send_bill(amount))
