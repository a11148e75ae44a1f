"""The `stash` command: looks at a running cluster and tells what it found, and removes what is over when it is told to.

Facts are collected into named tuples (`records`, `sources`, `holdings`, `folders`, `examine`), judged (`status`,
`doctor`, `logs`, `causes`, `runs`) and only then printed (`show` and its like), so that everything but the last step is
tested without a terminal. What changes anything is in `removing`, in `folders.remove` and in `chaos`, and nowhere else.
"""

import os
import sys

HASH_SEED = ("PYTHONHASHSEED", "0")
"""The order of a set of strings is the same in every life of an actor, and in a replay."""

PATIENCE = {
    "RAY_gcs_server_port_wait_time_s": "2",
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "3",
}
"""How long Ray tries to reach a control plane that is not there: seconds, where it would be minutes by default."""


def main() -> None:
    """Run the command line."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)  # before anything imports Ray, which reads them while it loads
    if sys.argv[1:2] in (["replay"], ["why"]) and os.environ.get(HASH_SEED[0]) != HASH_SEED[1]:
        # Actors run with this seed, and whoever runs their history again must have had it from the beginning.
        os.environ[HASH_SEED[0]] = HASH_SEED[1]
        os.execv(sys.executable, [sys.executable, "-m", "lineage_stash.cli", *sys.argv[1:]])
    from lineage_stash.cli.commands import app

    app(prog_name="stash")
