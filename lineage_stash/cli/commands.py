"""The command line: every command by its name. What they do is in the modules beside this one, by family.

They load nothing of Ray before they are asked for something, so that `--help` is there at once.
"""

import typer

from lineage_stash.cli import chaos_command, log_commands, look_commands, run_commands, ui_command
from lineage_stash.cli.options import parse_duration_s

__all__ = ["app", "parse_duration_s"]

app = typer.Typer(
    name="stash",
    help="Look at the programs of a Ray cluster that survive kill -9: who runs, what was recovered, what is wrong, why "
    "a call ran when it did, and what is over and can be removed. Run it on a node of the cluster; only abandon, rm "
    "and gc change anything, and chaos kills on purpose. log, why, replay and ui also read the files of a store whose "
    "cluster is gone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FAMILIES = (
    (look_commands, ("status", "top", "recoveries", "recovery", "doctor")),
    (log_commands, ("log", "why", "replay")),
    (run_commands, ("runs", "abandon", "rm", "gc")),
    (ui_command, ("ui",)),
    (chaos_command, ("chaos",)),
)

for _family, _names in FAMILIES:
    for _name in _names:
        app.command(_name)(getattr(_family, _name))
