"""The store: where lineage becomes durable. One contract, one replica state machine, one quorum client.

Rules of the contract (`contract.py`) are checked by one suite for every backend. The simulator runs the same classes.
"""
