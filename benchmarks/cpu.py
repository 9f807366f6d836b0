"""Optimizers and epilogues on CPU ranks, baselines included: one command, raw samples into notebooks/data.

    .venv/bin/python benchmarks/cpu.py                 # Adam 2^10 … 2^26 FP32 on 2 and 4 ranks, and the epilogue
    .venv/bin/python benchmarks/cpu.py --quick         # three sizes, into out/: what is committed is of all sizes

The baseline gloo+torch_fused is measured where torch is installed (``.venv/bin/python -m pip install -e '.[bench]'``).
Every size is measured in turn on the same ranks, baselines and schedules alike: warm-up, then repeats that all ranks
begin together; a sample is the slowest rank's time.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

from coconet_lab.cli.measure import Size, compare, make
from coconet_lab.run.cluster import Cluster
from coconet_lab.run.comparison import COLUMNS, Comparison

ROOT = Path(__file__).parents[1]
DATA, TRIED = ROOT / "notebooks" / "data", ROOT / "out"
ADAM_SIZES = tuple(2**power for power in range(10, 27, 2))
EPILOGUE = Size((4, 64, 3072))


def main() -> None:
    options = parsed()
    sizes = (2**10, 2**16, 2**20) if options.quick else ADAM_SIZES
    rows: dict[str, list[dict[str, object]]] = {}
    written: list[Path] = []
    for ranks in options.ranks:
        with Cluster(ranks=ranks, backend="cpu") as cluster:
            for workload, size, measured in _measure(cluster, sizes, options.quick):
                print(f"\n{workload} {size}, {ranks} ranks\n{measured!r}", flush=True)
                rows.setdefault(workload, []).extend(measured.records())
                written = _write(options.out, rows)
    print(f"\nwrote {', '.join(map(str, written))}")


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """What was asked for; three sizes alone never replace the committed file of all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of ranks (default: 2 4)")
    parser.add_argument("--quick", action="store_true", help="three sizes of Adam only")
    parser.add_argument("--out", type=Path, help="folder of the CSV files (default: notebooks/data; with --quick: out)")
    options = parser.parse_args(arguments)
    options.out = options.out or (TRIED if options.quick else DATA)
    return options


def _measure(cluster: Cluster, sizes: tuple[int, ...], quick: bool) -> Iterator[tuple[str, Size, Comparison]]:
    for elements in sizes:
        size = Size((elements,))
        made = make("adam", size, cluster.ranks, "fp32")
        yield "adam", size, compare(cluster, made, size, repeats=_repeats(elements), warmup=3)
    if quick:
        return
    for workload in ("sgd", "lamb"):
        for elements in (2**12, 2**16, 2**20, 2**24):
            size = Size((elements,))
            made = make(workload, size, cluster.ranks, "fp32")
            yield workload, size, compare(cluster, made, size, repeats=_repeats(elements), warmup=3)
    made = make("self_attention", EPILOGUE, cluster.ranks, "fp32")
    yield "self_attention", EPILOGUE, compare(cluster, made, EPILOGUE, repeats=15, warmup=3)


def _repeats(elements: int) -> int:
    """Many repeats of short runs: a stall of one time slice must not be the median."""
    return 101 if elements <= 2**18 else 31 if elements <= 2**22 else 7 if elements <= 2**24 else 3


def _write(folder: Path, rows: dict[str, list[dict[str, object]]]) -> list[Path]:
    """One file a workload, written again after every size: an interrupted run keeps what it has."""
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for workload, records in rows.items():
        path = folder / f"{records[0]['machine']}_{workload}.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)
        paths.append(path)
    return paths


if __name__ == "__main__":
    main()
