"""`coconet-lab bench`: measure a workload's schedules and its baselines; a table here, records into files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from coconet_lab.arguments import file_access
from coconet_lab.cli.measure import NAMES, OPTIMIZERS, Size, chosen_baselines, compare, make, parse_size
from coconet_lab.cli.usage import UsageError, check_file, known
from coconet_lab.run.cluster import Cluster
from coconet_lab.run.comparison import Comparison, records_csv
from coconet_lab.workloads import Workload

INTERRUPTED = 130  # what shells take for it
DEFAULT_SIZES = {True: "2^20", False: "4x64x1024"}  # of an optimizer; of the others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `coconet-lab bench`."""
    parser.add_argument("workload", metavar="WORKLOAD", help=", ".join(NAMES))
    parser.add_argument("--ranks", type=int, default=2, help="ranks to run on (default: 2)")
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto", help="where the ranks run")
    parser.add_argument("--sizes", nargs="+", default=None, help="2^20 or 1048576; for epilogues 4x64x3072")
    parser.add_argument("--schedules", nargs="+", default=None, help="the paper's names (default: all)")
    parser.add_argument("--baselines", nargs="*", default=None, help="hand-written ones (default: all)")
    parser.add_argument("--dtype", choices=("fp32", "fp16"), default="fp32", help="on the wire (default: fp32)")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of each (default: 10)")
    parser.add_argument("--warmup", type=int, default=2, help="runs before them (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write an object whose rows have the CSV columns")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows as CSV")


def run(options: argparse.Namespace) -> int:
    """Measure, print a table a size, write the files."""
    sizes, workloads = _checked(options)  # what is typed wrong is told before anything starts
    done: list[Comparison] = []
    with Cluster(ranks=options.ranks, backend=options.backend) as cluster:
        for size, made in zip(sizes, workloads):
            found = compare(
                cluster, made, size, schedules=options.schedules, baselines=options.baselines,
                repeats=options.repeats, warmup=options.warmup, seed=options.seed,
            )  # fmt: skip
            print(f"\n{made.name} {size} {options.dtype}, {options.ranks} ranks\n{found!r}", flush=True)
            done.append(found)
            if found.is_partial:
                break
    records = [record for comparison in done for record in comparison.records()]
    texts = {options.json: json.dumps({"rows": records}, indent=1) + "\n", options.csv: records_csv(records)}
    for path, text in texts.items():
        if path:
            with file_access("write", path):
                path.write_text(text, encoding="utf-8")
    for path in filter(None, (options.json, options.csv)):
        print(f"wrote {path}")
    return INTERRUPTED if done[-1].is_partial else 0


def _checked(options: argparse.Namespace) -> tuple[list[Size], list[Workload]]:
    """The sizes and workloads of a command line.

    Raises
    ------
    UsageError
        Names there are not, numbers that make no measurement, files that cannot be written.
    """
    where = f"coconet-lab bench {options.workload}"
    name = known("workload", options.workload, NAMES, where=where, hint="coconet-lab bench adam")
    if options.repeats < 1 or options.warmup < 0:
        raise UsageError(
            f"{options.repeats} repeats after {options.warmup} warm-ups",
            rule="one repeat or more, none or more warm-ups",
            where=where,
            hint="--repeats 10 --warmup 2",
        )
    for path in filter(None, (options.json, options.csv)):
        if path.parent.is_dir():
            check_file(path, where)
        else:
            raise UsageError(
                f"there is no folder {str(path.parent)!r} to write {path.name!r} into",
                rule="measurements go into a folder that exists",
                where=where,
                hint=f"mkdir -p {path.parent}",
            )
    sizes = [parse_size(text, name) for text in options.sizes or [DEFAULT_SIZES[name in OPTIMIZERS]]]
    workloads = [make(name, size, options.ranks, options.dtype) for size in sizes]
    for schedule in options.schedules or ():
        names = list(workloads[0].schedules)
        known("schedule", schedule, names, where=where, hint=f"--schedules {names[-1]!r}")
    chosen_baselines(workloads[0], options.baselines)
    return sizes, workloads
