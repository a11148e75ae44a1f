"""Connections between processes that share a secret: frames in, frames out, and word of a loss. No Ray, no pickles.

Read in this order: frames, handshake, addresses, poller, timers, connection, tls, loop.
"""
