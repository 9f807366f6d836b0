"""The demo's page: every schedule before and after each step, times, timelines and code, in one folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coconet_lab.run.comparison import Comparison
from coconet_lab.run.results import duration
from coconet_lab.viz.charts import speedup_bars
from coconet_lab.viz.draw import draw
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
    return [
        Section(title, ["The program as it is written, layouts as colours.", _graph(out_dir, made.name, made.program)]),
        Section(f"{title}: times", [_times(measured), _bars(out_dir, made.name, measured)]),
        Section(f"{title}: the way to {final}", [schedule.script(), *_steps(out_dir, made, final)]),
        Section(f"{title}: what ran when", _timelines(out_dir, made.name, measured, final)),
        Section(f"{title}: the generated kernel", [Code(schedule.code("cpu"), f"what ran for {final}")]),
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
            f"{row.timing.compile_s:.1f} s",
        )
        for row in measured.rows
    ]
    head = ("schedule", "median", "p10 to p90", "over naive", "over by hand", "compiling (apart)")
    repeats = len(measured.rows[0].timing.samples_us)
    return Table(head, rows, f"slowest rank, {repeats} repeats after warm-up, same ranks and inputs for all")


def _bars(out_dir: Path, name: str, measured: Comparison) -> Figure:
    axes = speedup_bars(measured.records(), baseline=measured.baseline)
    return _saved(axes, out_dir / f"{name}_times.svg", f"speed-up over {measured.baseline}")


def _steps(out_dir: Path, made: Workload, final: str) -> list[Figure]:
    schedule = made.schedules[final]
    figures = []
    for index, step in enumerate(schedule.steps):
        path = out_dir / f"{made.name}_step{index + 1}_{step.kind}.svg"
        draw(schedule, step=index + 1).save(str(path))
        figures.append(Figure(path, f"step {index + 1}: {step.script()}, before and after"))
    return figures


def _timelines(out_dir: Path, name: str, measured: Comparison, final: str) -> list[Any]:
    figures = []
    for row in (measured["naive"], measured[final]):
        axes = timeline(row.trace)
        axes.set_title(f"{row.schedule}, last repeat", loc="left", fontsize=10)
        figures.append(_saved(axes, out_dir / f"{name}_timeline_{_slug(row.schedule)}.svg", row.schedule))
    return figures


def _graph(out_dir: Path, name: str, program: Any) -> Figure:
    path = out_dir / f"{name}_program.svg"
    draw(program).save(str(path))
    return Figure(path, "the dataflow graph")


def _saved(axes: Any, path: Path, caption: str) -> Figure:
    import matplotlib.pyplot as plt

    axes.figure.savefig(path, bbox_inches="tight")
    plt.close(axes.figure)
    return Figure(path, caption)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
