"""`python -m lineage_stash.testing`: run simulated schedules, see one survive, or let chaos loose on real ones."""

import argparse
import os
import sys

from lineage_stash.testing.demo import demo
from lineage_stash.testing.runner import simulate

SHAPE_NAMES = (
    "parameter server", "actor pool", "tree of actors", "pipelines of refs", "supervisor", "Monte Carlo pi",
    "map-reduce", "batch prediction",
)  # fmt: skip
"""Spelled here so that simulating needs no Ray."""


def main() -> int:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m lineage_stash.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("simulate", help="run schedules and check every invariant; exit code 1 if one is broken")
    runs.add_argument("--schedules", type=int, default=2000, help="how many (default 2000)")
    runs.add_argument("--seed", type=int, default=0, help="the first seed; schedule n has seed + n (default 0)")
    runs.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    shown = commands.add_parser("demo", help="watch a small system lose processes and carry on")
    shown.add_argument("--seed", type=int, default=28, help="which run (default 28)")
    wild = commands.add_parser("chaos", help="run programs on a real cluster while their processes are killed")
    wild.add_argument("--minutes", type=float, default=2.0, help="for how long; 0 is one run (default 2)")
    wild.add_argument("--seed", type=int, default=0, help="the first run; run n has seed + n (default 0)")
    wild.add_argument("--shape", choices=SHAPE_NAMES, help="only this kind of program (default: each in its turn)")
    arguments = parser.parse_args()
    if arguments.command == "chaos":
        from lineage_stash.testing.chaos import chaos

        return chaos(arguments.seed, arguments.minutes, arguments.shape)
    if arguments.command == "simulate":
        return simulate(arguments.seed, arguments.schedules, arguments.workers)
    return demo(arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
