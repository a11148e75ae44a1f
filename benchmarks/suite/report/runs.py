"""Runs: the records of one report, asked for by what was run, and compared only with what ran in the same way."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.suite import peers
from benchmarks.suite.records import Cell, Record
from benchmarks.suite.systems import CLASSES

STASH = "stash"
SYSTEMS = (*CLASSES, *peers.NAMES)
"""In the order in which they are shown; others come after these."""

RIVALS = peers.NAMES
"""Systems that run the stream by their own means, in environments of their own."""


def system_of(name: str) -> str:
    """One spelling for a system, however its module spells it."""
    return name.replace("_", "-")


def label_of(cell: Cell) -> str:
    """A system with its variant, as figures and tables name it."""
    return f"{system_of(cell.system)} {cell.variant}".strip()


def place_of(label: str) -> tuple[int, str]:
    """Where a system or a label belongs in the order of showing."""
    name = label.split(" ")[0]
    return (SYSTEMS.index(name) if name in SYSTEMS else len(SYSTEMS), label)


def setting_of(cell: Cell, *, without: Sequence[str] = ()) -> str:
    """The parameters of a workload in one line."""
    return ", ".join(f"{name}={value}" for name, value in sorted(cell.parameters.items()) if name not in without)


class Runs:
    """All records of a report; a selection of them is one too."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = sorted(
            records, key=lambda record: (record.cell.workload, place_of(label_of(record.cell)), record.cell.failure)
        )

    def __iter__(self) -> Any:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def where(self, condition: Callable[[Record], object]) -> "Runs":
        """Those that meet a condition."""
        return Runs(record for record in self.records if condition(record))

    def of(self, *, workload: str | None = None, system: str | None = None, variant: str | None = None,
           is_failing: bool | None = None, **parameters: Any) -> "Runs":  # fmt: skip
        """Those of a workload, a system, a variant, with or without failures, with these parameters."""

        def matches(record: Record) -> bool:
            cell = record.cell
            return (
                (workload is None or cell.workload == workload)
                and (system is None or system_of(cell.system) == system)
                and (variant is None or cell.variant == variant)
                and (is_failing is None or bool(cell.failure) == is_failing)
                and all(cell.parameters.get(name) == value for name, value in parameters.items())
            )

        return self.where(matches)

    @property
    def ok(self) -> "Runs":
        """Those that ran and delivered what was promised: only these have figures to compare."""
        return self.where(lambda record: record.status == "ok")

    @property
    def ended(self) -> "Runs":
        """Those that ran to an end, right or wrong."""
        return self.where(lambda record: record.status in ("ok", "wrong"))

    @property
    def labels(self) -> list[str]:
        """The systems and variants that are here, in the order of showing."""
        return sorted({label_of(record.cell) for record in self.records}, key=place_of)

    @property
    def workloads(self) -> list[str]:
        """The workloads that are here."""
        return sorted({record.cell.workload for record in self.records})

    def alike(self, record: Record) -> "Runs":
        """Other systems' runs of the same workload with the same parameters and the same failure."""
        cell = record.cell
        return self.where(
            lambda other: (
                other is not record
                and (other.cell.workload, other.cell.failure) == (cell.workload, cell.failure)
                and other.cell.parameters == cell.parameters
            )
        )

    def commonest(self, *, without: Sequence[str] = ()) -> "Runs":
        """Those with the setting that most systems ran with, so that what is beside each other compares."""
        systems = {(setting_of(record.cell, without=without), label_of(record.cell)) for record in self.records}
        counted = Counter(setting for setting, _ in systems)
        if not counted:
            return Runs([])
        most = max(sorted(counted), key=lambda setting: counted[setting])
        return self.where(lambda record: setting_of(record.cell, without=without) == most)

    def one_each(self) -> "Runs":
        """One run for each system and variant: that with the lowest seed."""
        found: dict[str, Record] = {}
        for record in sorted(self.records, key=lambda record: record.cell.seed):
            found.setdefault(label_of(record.cell), record)
        return Runs(found.values())
