"""`coconet-lab demo`: the main job in a minute: programs, schedules, proofs, kernels on ranks, pictures."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from coconet_lab.cli.measure import Size, compare, make
from coconet_lab.cli.usage import check_folder
from coconet_lab.run.cluster import Cluster
from coconet_lab.run.comparison import Comparison, records_csv
from coconet_lab.run.results import duration
from coconet_lab.viz.demo_page import write_demo
from coconet_lab.workloads import Workload

RANKS = 4
REPEATS = 5


@dataclass(frozen=True, slots=True)
class _Part:
    """One workload of the demo."""

    title: str
    size: Size
    made: Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `coconet-lab demo`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for graphs and plots (default: out)")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"ranks to run on (default: {RANKS})")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, help=f"timed runs of each schedule (default: {REPEATS})"
    )


def run(options: argparse.Namespace) -> int:
    """Say what comes, prove every schedule, run them all, draw, and name the page and the next command."""
    started = time.monotonic()
    parts = _parts(options.ranks)
    check_folder(options.out, "coconet-lab demo")
    _announce(parts, options)
    for part in parts:
        _prove(part)
    measured: list[Comparison] = []
    with Cluster(ranks=options.ranks, backend="cpu") as cluster:
        for part in parts:
            print(f"\nrunning {part.title} on {options.ranks} ranks", flush=True)
            measured.append(compare(cluster, part.made, part.size, repeats=options.repeats))
            if measured[-1].is_partial:
                raise KeyboardInterrupt
            print(table(measured[-1]), flush=True)
    records = [record for comparison in measured for record in comparison.records()]
    (options.out / "demo.csv").write_text(records_csv(records), encoding="utf-8")
    print("\ndrawing graphs and timelines", flush=True)
    index = write_demo(options.out, [(p.title, p.made, c) for p, c in zip(parts, measured)])
    print(f"\ndone in {time.monotonic() - started:.0f} s")
    print(f"look at:  {index}")
    print("next:     make lab   (the same in notebooks: notebooks/00_language.ipynb)")
    return 0


def _parts(ranks: int) -> tuple[_Part, ...]:
    """GPT-2 8.3B's width with B·S cut to what a laptop takes, and Adam on 2^24 elements; FP32."""
    attention, adam = Size((4, 64, 3072)), Size((2**24,))
    return (
        _Part(
            "self-attention epilogue, B = 4, S = 64, H = 3072",
            attention,
            make("self_attention", attention, ranks, "fp32"),
        ),
        _Part("Adam on 2^24 elements", adam, make("adam", adam, ranks, "fp32")),
    )


def _announce(parts: tuple[_Part, ...], options: argparse.Namespace) -> None:
    schedules = sum(len(p.made.schedules) for p in parts)
    print(
        f"The demo writes {len(parts)} programs once, transforms them into {schedules} schedules, proves each against\n"
        f"its program, runs all of them and a hand-written baseline on {options.ranks} MPI ranks of this machine with\n"
        f"generated kernels, and draws every step. Nothing is downloaded; it takes about a minute, and less when the\n"
        f"kernels are compiled already. Graphs and plots go to {options.out}/index.html.",
        flush=True,
    )


def _prove(part: _Part) -> None:
    print(f"\n{part.title}: proving", flush=True)
    for name, schedule in part.made.schedules.items():
        print(f"  {name:<24} {schedule.check()}", flush=True)


def table(measured: Comparison) -> str:
    """Median, spread, and speed-up over the naive schedule and over what a user would write by hand."""
    hand = measured.rows[0].timing.median_us
    naive = measured["naive"].timing.median_us
    head = ("schedule", "median", "p10", "p90", "over naive", "over by hand")
    body = [
        (
            row.schedule,
            duration(row.timing.median_us),
            duration(row.timing.p10_us),
            duration(row.timing.p90_us),
            f"{naive / row.timing.median_us:.2f}×",
            f"{hand / row.timing.median_us:.2f}×",
        )
        for row in measured.rows
    ]
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))])
        for line in [head, *body]
    ]
    return "\n".join(["  " + line for line in lines])
