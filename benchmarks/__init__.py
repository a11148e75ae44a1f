"""The failure-injection suite: what fault tolerance costs while nothing fails, and what a failure costs.

Latency is measured from the time at which a call was due, not from when it was sent, so that a stall is charged to
every call it delayed. Results show p50, p99 and the maximum of the key that was hit. `python -m benchmarks` runs it.
"""
