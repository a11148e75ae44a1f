"""Settings of the protocol. Each knob states its unit, its default and the reason for it."""

from typing import NamedTuple

from lineage_stash.core.outbox import UNDER_WAY_BYTES


class Policy(NamedTuple):
    """How much is kept, how much travels together, and how many node failures at once are survived."""

    max_failures: int | None = None
    """Nodes that may fail within one commit window; None forwards to everyone and survives any number."""

    window_messages: int = 8
    """Unacknowledged messages per channel: enough to keep a link busy, few enough that calls gather under load."""

    calls_per_message: int = 1024
    """Most calls, and most replies, in one message: bounds a frame."""

    bytes_per_message: int = 1024 * 1024
    """Most bytes of calls, and of replies, in one message unless a single one is larger: keeps large ones flowing."""

    resend_after_ticks: int = 3
    """Ticks without acknowledgement before messages are sent again."""

    checkpoint_every_entries: int | None = 10_000
    """Entries between checkpoints; None never checkpoints (drivers, endless methods)."""

    checkpoint_every_bytes: int = 32 * 1024 * 1024
    """Payloads and readings logged by content between checkpoints: the store keeps them until then."""

    flushes_at_once: bool = True
    """Whether a flush begins as soon as there is something to flush. Otherwise it waits for `FlushDue`, for a gate, or
    for `entries_per_flush`, so that a busy peer pays for one flush and not for many; nobody waits for a flush."""

    entries_per_flush: int = 512
    """Entries that are flushed without waiting for company."""

    stash_cap_bytes: int = 64 * 1024 * 1024
    """Uncommitted lineage held before callers feel back-pressure."""

    buffer_cap_bytes: int = 128 * 1024 * 1024
    """Calls and replies kept in memory for those who may ask for them again; what is more is spilled."""

    under_way_bytes: int = UNDER_WAY_BYTES
    """Calls sent to one callee and not answered, which it keeps in memory."""

    patience_ticks: int = 20
    """Ticks a live peer has to answer a round before it joins the dead."""
