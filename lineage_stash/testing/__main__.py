"""`python -m lineage_stash.testing`: run simulated schedules, or see one of them survive."""

import argparse
import os
import sys

from lineage_stash.testing.demo import demo
from lineage_stash.testing.runner import simulate


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
    arguments = parser.parse_args()
    if arguments.command == "simulate":
        return simulate(arguments.seed, arguments.schedules, arguments.workers)
    return demo(arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
