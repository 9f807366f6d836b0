"""`coconet-lab bench`: measure a workload's schedules and its baselines; a table here, records into files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from coconet_lab.cli.measure import NAMES, compare, make, parse_size
from coconet_lab.cli.usage import UsageError, known
from coconet_lab.run.cluster import Cluster
from coconet_lab.run.comparison import Comparison, records_csv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `coconet-lab bench`."""
    parser.add_argument("workload", metavar="WORKLOAD", help=", ".join(NAMES))
    parser.add_argument("--ranks", type=int, default=2, help="ranks to run on (default: 2)")
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--sizes", nargs="+", default=None, help="2^20 or 1048576; for epilogues 4x64x3072")
    parser.add_argument("--schedules", nargs="+", default=None, help="the paper's names (default: all)")
    parser.add_argument("--baselines", nargs="*", default=None, help="hand-written ones (default: all)")
    parser.add_argument("--dtype", choices=("fp32", "fp16"), default="fp32", help="on the wire (default: fp32)")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of each (default: 10)")
    parser.add_argument("--warmup", type=int, default=2, help="runs before them (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write an object whose rows have the CSV columns")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows as CSV")


def run(options: argparse.Namespace) -> int:
    """Measure, print a table a size, write the files."""
    where = f"coconet-lab bench {options.workload}"
    name = known("workload", options.workload, NAMES, where=where, hint="coconet-lab bench adam")
    if options.repeats < 1 or options.warmup < 0:
        raise UsageError(
            f"{options.repeats} repeats after {options.warmup} warm-ups",
            rule="one repeat or more, none or more warm-ups",
            where=where,
            hint="--repeats 10 --warmup 2",
        )
    texts = options.sizes or (["2^20"] if name in ("sgd", "adam", "lamb") else ["4x64x1024"])
    sizes = [parse_size(text, name) for text in texts]
    workloads = [make(name, size, options.ranks, options.dtype) for size in sizes]
    for made in workloads:  # wrong names are told before anything starts
        unknown = set(options.schedules or ()) - set(made.schedules)
        for schedule in sorted(unknown):
            known(
                "schedule",
                schedule,
                list(made.schedules),
                where=where,
                hint=f"--schedules {next(iter(made.schedules))}",
            )
    done: list[Comparison] = []
    with Cluster(ranks=options.ranks, backend=options.backend) as cluster:
        for size, made in zip(sizes, workloads):
            done.append(
                compare(
                    cluster,
                    made,
                    size,
                    schedules=options.schedules,
                    baselines=options.baselines,
                    repeats=options.repeats,
                    warmup=options.warmup,
                    seed=options.seed,
                )
            )
            print(f"\n{made.name} {size} {options.dtype}, {options.ranks} ranks\n{done[-1]!r}", flush=True)
    records = [record for comparison in done for record in comparison.records()]
    if options.json:
        options.json.write_text(json.dumps({"rows": records}, indent=1) + "\n")
    if options.csv:
        options.csv.write_text(records_csv(records))
    for path in (options.json, options.csv):
        if path:
            print(f"wrote {path}")
    return 0
