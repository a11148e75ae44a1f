"""Commands about logs: what was decided, why a call ran when it did, and running a history again."""

from pathlib import Path
from typing import Annotated

import typer

from lineage_stash.cli.options import (
    AddressOption,
    FilesOption,
    FilterOption,
    Format,
    FormatOption,
    chosen,
    fail,
    logs_of,
    note,
    print_answer,
)

MOST_SHOWN = 1000
TAIL = 100
"""Entries from an index on, unless it is said up to where."""

PeerArgument = Annotated[
    str,
    typer.Argument(metavar="PEER", help="Its id as `stash status` shows it, the last part of it, or an actor's name."),
]


def log(
    peer: PeerArgument,
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    storage: FilesOption = None,
    filters: FilterOption = None,
    tail: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the last entries to show; 100 by default.", show_default=False),
    ] = None,
    lower: Annotated[int | None, typer.Option("--from", min=0, help="Show entries from this index on.")] = None,
    upper: Annotated[int | None, typer.Option("--to", min=0, help="Show entries below this index.")] = None,
) -> None:
    """Show the entries of a log in words: which calls ran in which order, what was read, what was waited for.

    From a cluster they are what its store has; what a live peer has not flushed yet, of some milliseconds, is missing.
    """
    from lineage_stash.cli import show_logs
    from lineage_stash.cli.logs import LogEntry, read_log

    if tail is not None and (lower is not None or upper is not None):
        raise typer.BadParameter("--tail counts from the end: give it, or --from and --to")
    if lower is not None and upper is not None and lower >= upper:
        raise typer.BadParameter(f"--from {lower} --to {upper} leaves nothing: entries below --to are shown")
    if lower is not None and upper is None:
        upper = lower + MOST_SHOWN
    with logs_of(address, storage) as source:
        part = read_log(source, source.resolve(peer), lower=lower, upper=upper, tail=tail or TAIL)
    shown = chosen(part.entries, filters, LogEntry._fields)
    print_answer(output, show_logs.log_view(part, shown), show_logs.log_json(part, shown))


def why(
    call: Annotated[
        str,
        typer.Argument(
            metavar="CALL",
            help="PEER:INDEX, as `stash log` shows it, CALLER->CALLEE#SEQNO, or the key of an effect, PEER!NUMBER, for "
            "which the actor's code is run again.",
        ),
    ],
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    storage: FilesOption = None,
    depth: Annotated[int, typer.Option(min=0, help="How far to follow causes of causes.")] = 4,
    most: Annotated[int, typer.Option(min=1, help="How many causes to show at most.")] = 60,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it, too: a picture.", dir_okay=False)] = None,
    dot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it for Graphviz, too.", dir_okay=False)
    ] = None,
) -> None:
    """Show the causal past of a call or of an output: who called, in which order, with which reads.

    Partitions of Spark stages that it was given are among its causes.
    """
    from lineage_stash.cli import drawing, show_logs
    from lineage_stash.cli.causes import past_of

    with logs_of(address, storage) as source:
        past = past_of(source, call, depth=depth, most=most)
    for path, draw in ((svg, drawing.as_svg), (dot, drawing.as_dot)):
        if path is not None:
            try:
                path.write_text(draw(past), encoding="utf-8")
            except OSError as error:
                fail(f"{path} cannot be written: {error.strerror}")
            note(f"drawn: {path}")
    print_answer(output, show_logs.past_view(past), show_logs.past_json(past))


def replay(
    peer: PeerArgument,
    output: FormatOption = Format.TABLE,
    address: AddressOption = None,
    storage: FilesOption = None,
    to: Annotated[
        int | None, typer.Option(min=0, help="Up to which index of its log.", show_default="all of it")
    ] = None,
    code: Annotated[
        str | None,
        typer.Option("--with", metavar="MODULE:CLASS", help="Run the same history through this class, too, and show "
                     "the first difference.", show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Rebuild the state that an actor had at any index of its log, on this machine; or try other code on its history.

    Its log is run again from its last checkpoint on. Nothing is written, started or sent. With other code it is a check
    before that code is deployed. Ends with exit code 1 if the history could not be run to its end, or if something
    differs. Runs the actor's code: only replay what you trust.
    """
    from lineage_stash.cli import show_logs
    from lineage_stash.cli.replaying import replay as run_again

    with logs_of(address, storage) as source:
        report = run_again(source, source.resolve(peer), to, code)
    print_answer(output, show_logs.replay_view(report), show_logs.replay_json(report))
    own_ended = report.own is not None and report.own.ended is not None and report.own.ended.kind != "cut"
    if report.difference is not None or own_ended or (report.other is not None and report.other.ended is not None):
        raise typer.Exit(1)
