"""The demo's page: every schedule before and after each step, times, timelines and code, in one folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coconet_lab.run.comparison import Comparison
from coconet_lab.run.results import duration
from coconet_lab.viz.charts import speedup_bars
from coconet_lab.viz.draw import Drawing, draw
from coconet_lab.viz.index_page import Code, Figure, Section, Table, write_index
from coconet_lab.viz.timeline import timeline
from coconet_lab.workloads import Workload

Part = tuple[str, Workload, Comparison]


def write_demo(out_dir: Path, parts: Sequence[Part]) -> Path:
    """Write graphs (SVG, before and after each step), timing plots and the page that shows them all.

    Parameters
    ----------
    out_dir : Path
    parts : sequence of (title, workload, what was measured)

    Returns
    -------
    Path
        ``index.html``.
    """
    sections = [section for part in parts for section in _sections(out_dir, *part)]
    note = parts[0][2].rows[-1].provenance.caption()
    return write_index(out_dir, "coconet_lab demo", sections, note=note)


def _sections(out_dir: Path, title: str, made: Workload, measured: Comparison) -> list[Section]:
    final = list(made.schedules)[-1]
    schedule = made.schedules[final]
    name = made.name.replace("_", "-")
    script = Code(schedule.script(), "the steps; each is drawn below, before and after")
    return [
        Section(title, ["The program as it is written, layouts as colours.", _graph(out_dir, made.name, made.program)]),
        Section(f"{name}: times", [_times(measured), _bars(out_dir, made.name, measured)]),
        Section(f"{name}: the way to {final}", [script, *_steps(out_dir, made, final)]),
        Section(f"{name}: what ran when", _timelines(out_dir, made.name, measured, final)),
        Section(f"{name}: the generated kernel", [Code(schedule.code("cpu"), f"what ran for {final}")]),
    ]


def _times(measured: Comparison) -> Table:
    hand, naive = measured.rows[0].timing.median_us, measured["naive"].timing.median_us
    rows = [
        (
            row.schedule,
            duration(row.timing.median_us),
            f"{duration(row.timing.p10_us)} to {duration(row.timing.p90_us)}",
            f"{naive / row.timing.median_us:.2f}×",
            f"{hand / row.timing.median_us:.2f}×",
            f"{row.timing.compile_s:.1f} s" if row.result is not None else "",
        )
        for row in measured.rows
    ]
    head = ("schedule", "median", "p10 to p90", "over naive", "over by hand", "compiling (apart)")
    repeats = len(measured.rows[0].timing.samples_us)
    times = f"{repeats} repeat{'s' if repeats > 1 else ''} after warm-up"
    return Table(head, rows, f"slowest rank, {times}, same ranks and inputs for all")


def _bars(out_dir: Path, name: str, measured: Comparison) -> Figure:
    axes = speedup_bars(measured.records(), baseline=measured.baseline)
    return _saved(axes, out_dir / f"{name}_times.svg", f"speed-up over {measured.baseline}")


def _steps(out_dir: Path, made: Workload, final: str) -> list[Figure]:
    schedule = made.schedules[final]
    return [
        _drawn(
            draw(schedule, step=number),
            out_dir / f"{made.name}_step{number}_{step.kind}.svg",
            f"step {number}: {step.script()}, before and after",
        )
        for number, step in enumerate(schedule.steps, 1)
    ]


def _timelines(out_dir: Path, name: str, measured: Comparison, final: str) -> list[Any]:
    rows = (measured["naive"], measured[final])
    return [
        _saved(
            timeline(row.trace),
            out_dir / f"{name}_timeline_{_slug(row.schedule)}.svg",
            f"{row.schedule}: every rank in one traced run, {duration(row.trace.total_us)}",
        )
        for row in rows
    ]


def _graph(out_dir: Path, name: str, program: Any) -> Figure:
    return _drawn(draw(program), out_dir / f"{name}_program.svg", "the dataflow graph")


def _drawn(drawing: Drawing, path: Path, caption: str) -> Figure:
    """A graph, in a file and in the page itself, where it takes the page's light or dark colours."""
    drawing.save(path)
    return Figure(drawing, caption)


def _saved(axes: Any, path: Path, caption: str) -> Figure:
    import matplotlib.pyplot as plt

    axes.figure.savefig(path, bbox_inches="tight")
    plt.close(axes.figure)
    return Figure(path, caption)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
