"""The failure-injection suite: the same workloads on several systems, with and without failures, and what it shows.

A *cell* is one workload on one system with one script of failures; a *run* is one cell measured once, in processes of
its own, and leaves one record (`records`). The report is made of records alone.
"""
