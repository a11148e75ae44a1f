"""The protocol, pure: facts in, orders out. Only this package and the standard library; no clock, no draws, no I/O.

Read in this order: ids, entry, frontier, batch, history, stash, channel, backlog, outbox, inbox, counterpart, lineage,
program, gate, checkpoint, promises, peer; then settle and recovery.
"""
