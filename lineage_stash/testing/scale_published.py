"""The model beside the published ring of 64 nodes: three constants are fitted, and every error is told.

Fitted are the cost of a hop, of an entry in a message, and the store's answer, by least squares of relative errors over
all fifteen figures. Published figures with a bound stop an entry after that many hops; how many entries travel without
a bound is taken from this project's own machines.
"""

from typing import NamedTuple

from lineage_stash.testing.scale import Constants, simulate_ring

NODES = 64
DELAYS_MS = (0.0, 1.0, 5.0)

PUBLISHED_MS = {
    "asynchronous, deterministic": (0.48, 0.49, 0.48),
    "asynchronous, f = 8": (0.68, 0.69, 0.70),
    "asynchronous, f = ∞": (4.01, 4.01, 4.06),
    "synchronous, deterministic": (0.96, 1.81, 5.87),
    "synchronous, nondeterministic": (1.72, 2.97, 11.07),
}
"""p50 per hop with this much added to the store."""


class Compared(NamedTuple):
    """One published figure and what the model says."""

    logging: str
    delay_ms: float
    published_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of the published figure."""
        return self.predicted_ms / self.published_ms - 1


def _shape(logging: str, unbounded: float) -> tuple[float, float]:
    """Entries in a message, and waits for the store, of one hop."""
    return {
        "asynchronous, deterministic": (0.0, 0.0),
        "asynchronous, f = 8": (8.0, 0.0),
        "asynchronous, f = ∞": (unbounded, 0.0),
        "synchronous, deterministic": (0.0, 1.0),
        "synchronous, nondeterministic": (0.0, 2.0),
    }[logging]


def fit() -> tuple[Constants, list[Compared]]:
    """The constants that fit best, and every figure beside its prediction."""
    unbounded = simulate_ring(NODES, Constants(0.5, 0.05, 0.5)).entries
    rows, values, known = [], [], []
    for logging, figures in PUBLISHED_MS.items():
        entries, waits = _shape(logging, unbounded)
        for delay_ms, published_ms in zip(DELAYS_MS, figures, strict=True):
            rows.append([part / published_ms for part in (1.0, entries, waits)])
            values.append((published_ms - waits * delay_ms) / published_ms)
            known.append((logging, delay_ms, published_ms, entries, waits))
    hop_ms, entry_ms, store_ms = least_squares(rows, values)
    constants = Constants(hop_ms, entry_ms, store_ms)
    compared = [
        Compared(logging, delay_ms, published_ms, hop_ms + entries * entry_ms + waits * (store_ms + delay_ms))
        for logging, delay_ms, published_ms, entries, waits in known
    ]
    return constants, compared


def least_squares(rows: list[list[float]], values: list[float]) -> list[float]:
    """The solution with the smallest sum of squares, by the normal equations: few unknowns, well apart."""
    size = len(rows[0])
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    right = [sum(row[i] * value for row, value in zip(rows, values, strict=True)) for i in range(size)]
    for pivot in range(size):
        for below in range(pivot + 1, size):
            share = matrix[below][pivot] / matrix[pivot][pivot]
            matrix[below] = [b - share * a for a, b in zip(matrix[pivot], matrix[below], strict=True)]
            right[below] -= share * right[pivot]
    solution = [0.0] * size
    for at in reversed(range(size)):
        rest = sum(matrix[at][other] * solution[other] for other in range(at + 1, size))
        solution[at] = (right[at] - rest) / matrix[at][at]
    return solution
