"""The command that shows everything in a browser."""

import os
from typing import Annotated

import typer

from lineage_stash.cli.options import AddressOption, FilesOption, fail

AWAY = ("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")
"""After a minute without its control plane Ray ends the process, by default: just when somebody looks at the page."""


def ui(
    address: AddressOption = None,
    storage: FilesOption = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Where to listen. Default: 8266, or any other port where that is taken.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a cluster in a browser, live: peers, dataflow, recoveries, causes and replicas.

    Prints the address to open, which has a key in it, and serves the page on this machine's loopback until Ctrl-C.
    With --storage it shows the files of a cluster that is gone.
    """
    os.environ.setdefault(*AWAY)  # before Ray is loaded, which reads it then
    from lineage_stash.cli.cluster import NotJoined
    from lineage_stash.cli.sources import NotFound
    from lineage_stash.on_ray.control_plane import ControlPlaneAway
    from lineage_stash.ui.command import CannotListen, show_cluster, show_files

    try:
        if storage:
            show_files(storage, port, typer.echo)
        else:
            show_cluster(address, port, typer.echo)
    except (NotJoined, NotFound, ControlPlaneAway, CannotListen) as error:
        fail(str(error))
