"""Garbage: how often Python looks for cycles in a process that takes part.

Python looks after every 700 objects that were made and not freed. Thousands of refs and calls under way are just that,
and none of them is garbage: a fifth of the time of a busy script went into looking at them. So it looks seldom here, at
the price of some megabytes of cycles that are found later.

Rules:
- A program that has set thresholds of its own keeps them, and one that leaves the cluster gets Python's back.
- In a host, what was imported before its life began is not looked at any more: to look through a hundred thousand
  objects that live as long as the process would be a pause of many calls, and a forked copy would write to all of them.
"""

import gc

PYTHONS = (700, 10, 10)
SELDOM = (50_000, 10, 10)
"""After so many objects: about 5 MB of them."""


def look_seldom() -> None:
    """From here on look for cycles now and then."""
    if gc.get_threshold() == PYTHONS:
        gc.set_threshold(*SELDOM)


def look_as_before() -> None:
    """This process takes part no more."""
    if gc.get_threshold() == SELDOM:
        gc.set_threshold(*PYTHONS)


def spare_what_is_imported() -> None:
    """Never look at what there is now."""
    gc.freeze()
