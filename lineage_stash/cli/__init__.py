"""The `stash` command: looks at a running cluster and tells what it found. It changes nothing there.

Facts are collected into named tuples (`records`, `status`, `recoveries`, `examine`), judged (`status`, `doctor`) and
only then printed (`show`), so that everything but the last step is tested without a terminal.
"""

import os

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
    from lineage_stash.cli.commands import app

    app()
