"""Schedules measured side by side: a table with one CSV schema, a plot, and the raw samples (design §5)."""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import dataclass
from typing import Any

from coconet_lab.arguments import file_access
from coconet_lab.arguments import path as checked_path
from coconet_lab.errors import ProgramError
from coconet_lab.ir.program import Program
from coconet_lab.run.provenance import Provenance
from coconet_lab.run.results import RunResult, Timing, duration
from coconet_lab.run.trace import Trace

COLUMNS = (
    "date", "machine", "ranks", "backend", "versions", "command", "workload", "schedule", "dtype",
    "elements", "shape", "median_us", "p10_us", "p90_us", "samples",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Row:
    """One measured schedule."""

    schedule: str
    workload: str
    dtype: str
    elements: int
    shape: str
    timing: Timing
    trace: Trace
    provenance: Provenance
    result: RunResult | None = None

    @classmethod
    def of(cls, name: str, program: Program, result: RunResult, workload: str = "") -> Row:
        """The row of a run of `program`."""
        output = program.types[program.outputs[0]]
        wire = {program.types[n].dtype.name.lower() for n in program.inputs if program.types[n].shape != ()}
        dtype = next((d for d in ("fp16", "bf16", "fp32", "fp64") if d in wire), output.dtype.name.lower())
        return cls(
            name, workload or program.name, dtype, output.elements, "x".join(map(str, output.shape)),
            result.timing, result.trace, result.provenance, result,
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """The row in the columns of the one CSV schema."""
        p = self.provenance
        values = (
            p.date, p.machine, p.ranks, p.backend, p.versions, p.command, self.workload, self.schedule, self.dtype,
            self.elements, self.shape, self.timing.median_us, self.timing.p10_us, self.timing.p90_us,
            json.dumps([round(s, 2) for s in self.timing.samples_us]),
        )  # fmt: skip
        return dict(zip(COLUMNS, values, strict=True))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several schedules, measured in one run.

    Parameters
    ----------
    rows : tuple of Row
    baseline : str
        The schedule that speed-ups are over.
    is_partial : bool
        Whether an interrupt ended it before all were measured.
    """

    rows: tuple[Row, ...]
    baseline: str
    is_partial: bool = False

    def __getitem__(self, schedule: str) -> Row:
        found = next((row for row in self.rows if row.schedule == schedule), None)
        if found is None:
            raise ProgramError(
                f"no schedule {schedule!r} was measured",
                rule="a comparison has a row for each schedule that was finished",
                where=f"comparison over {self.baseline!r}",
                hint=", ".join(repr(row.schedule) for row in self.rows),
            )
        return found

    def speedup(self, schedule: str) -> float:
        """Median of the baseline over the median of `schedule`."""
        return self[self.baseline].timing.median_us / self[schedule].timing.median_us

    def records(self) -> list[dict[str, Any]]:
        """One dict a row, in the columns of the one CSV schema."""
        return [row.record() for row in self.rows]

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The records as CSV text, written to `path` if there is one."""
        text = records_csv(self.records())
        if path is not None:
            where = checked_path(path, "the file of a comparison", hint='to_csv("times.csv")')
            with file_access("write", where):
                where.write_text(text, newline="", encoding="utf-8", errors="backslashreplace")
        return text

    def plot(self, ax: Any = None) -> Any:
        """Bars of the medians with p10 to p90 and the speed-up over the baseline; returns the Axes."""
        import importlib

        # Drawing lies in a layer above; it is asked for by name, so that running never imports it.
        charts = importlib.import_module("coconet_lab.viz.charts")
        return charts.speedup_bars(self.records(), baseline=self.baseline, ax=ax)

    def table(self) -> list[tuple[str, str, str, str, str]]:
        """Name, median, p10, p90 and speed-up as text."""
        return [
            (
                row.schedule,
                duration(row.timing.median_us),
                duration(row.timing.p10_us),
                duration(row.timing.p90_us),
                f"{self.speedup(row.schedule):.2f}×",
            )
            for row in self.rows
        ]

    def __repr__(self) -> str:
        head = ("schedule", "median", "p10", "p90", f"over {self.baseline}")
        body = [head, *self.table()]
        widths = [max(len(line[i]) for line in body) for i in range(len(head))]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:]))])
            for line in body
        ]
        return "\n".join([*lines, self.rows[0].provenance.caption()])


def records_csv(records: list[dict[str, Any]]) -> str:
    """Records as CSV text in the one schema."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()
