"""Tables of committed measurements as Markdown, for the README.

python benchmarks/summary.py notebooks/data/h200x2_adam.csv --dtype fp16
python benchmarks/summary.py notebooks/data/cpu2_adam.csv --ranks 2
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

OURS = ("AR-Opt", "RS-Opt-AG", "fuse(RS-Opt-AG)")
Medians = dict[int, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("csv", type=Path, help="a file of notebooks/data")
    parser.add_argument("--dtype", default="fp32", help="fp32 or fp16, on the wire (default: fp32)")
    parser.add_argument("--ranks", type=int, default=0, help="of so many ranks, where the file has several")
    options = parser.parse_args()
    with options.csv.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] == options.dtype]
    rows = [row for row in rows if not options.ranks or int(row["ranks"]) == options.ranks]
    if not rows:
        parser.error(f"{options.csv} has no rows of {options.dtype}" + f", {options.ranks} ranks" * bool(options.ranks))
    counts = sorted({int(row["ranks"]) for row in rows})
    if len(counts) > 1:
        parser.error(f"{options.csv} has rows of {counts} ranks, and a table is of one number: --ranks {counts[0]}")
    found = medians(rows)
    print("\n".join(gpu_table(found) if rows[0]["backend"] == "cuda" else cpu_table(found)))
    where = f"{rows[0]['machine']}, {rows[0]['ranks']} ranks, {rows[0]['date'][:10]}"
    print(f"\nMedians in µs, the slowest rank; {where}; {rows[0]['versions']}")
    print(f"`{rows[0]['command']}`")


def medians(rows: Sequence[Mapping[str, str]]) -> Medians:
    """Elements → schedule → median in microseconds; lists of tensors are left aside."""
    found: Medians = {}
    for row in rows:
        if "tensors" not in row["shape"]:
            found.setdefault(int(row["elements"]), {})[row["schedule"]] = float(row["median_us"])
    return {elements: found[elements] for elements in sorted(found) if len(found[elements]) > len(OURS)}


def gpu_table(found: Medians) -> list[str]:
    """Against NCCL alone, the plain update, the sliced one, and the best peer whatever its form."""
    head = ("elements", "all_reduce alone", "all_reduce + fused", "the sliced form", "best of all peers", *OURS)
    lines = [f"| {' | '.join(head)} | over the best peer |", "|---" * (len(head) + 1) + "|"]
    for elements, by in found.items():
        alone = min(us for name, us in by.items() if name.startswith("all_reduce") and "torch" not in name)
        peers = {name: us for name, us in by.items() if name not in OURS and "torch" in name}
        plain = [us for name, us in peers.items() if name.startswith("all_reduce") and "+" not in _form(name)]
        sliced = [us for name, us in peers.items() if name.startswith("reduce_scatter") and _form(name) == ""]
        best, ours = min(peers.values()), by["fuse(RS-Opt-AG)"]
        cells = [alone, min(plain), min(sliced), best, by.get("AR-Opt"), by.get("RS-Opt-AG"), ours]
        shown = [f"{us:.4g}" if us is not None else "–" for us in cells]
        shown[-1] = f"**{shown[-1]}**"
        lines.append(f"| {power(elements)} | {' | '.join(shown)} | {best / ours:.2f}× |")
    return lines


def _form(name: str) -> str:
    """What a baseline has beside its collectives and optimizer: ``+pool+graph``."""
    return "".join(f"+{part}" for part in name.split("+") if part in ("pool", "graph"))


def cpu_table(found: Medians) -> list[str]:
    """Every measured row."""
    names = list(dict.fromkeys(name for by in found.values() for name in by))
    lines = [f"| elements | {' | '.join(names)} | over mpi4py+numpy |", "|---" * (len(names) + 2) + "|"]
    for elements, by in found.items():
        shown = [f"{by[name]:.4g}" if name in by else "–" for name in names]
        ratio = by["mpi4py+numpy"] / by["fuse(RS-Opt-AG)"]
        lines.append(f"| {power(elements)} | {' | '.join(shown)} | {ratio:.1f}× |")
    return lines


def power(elements: int) -> str:
    """``2^20`` where it is one."""
    return f"2^{elements.bit_length() - 1}" if elements & (elements - 1) == 0 else f"{elements:,}"


if __name__ == "__main__":
    main()
