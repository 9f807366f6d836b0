"""What the GPU benchmarks share: ranks under mpiexec, samples, rows of the one schema."""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coconet_lab.run.comparison import COLUMNS
from coconet_lab.run.provenance import provenance
from coconet_lab.run.world import MpiWorld


def machine_label(gpu_name: str, ranks: int) -> str:
    """``NVIDIA H200`` and 2 ranks: ``h200x2``."""
    model = re.sub(r"[^a-z0-9]", "", gpu_name.lower().replace("nvidia", "").split("-")[0])
    return f"{model}x{ranks}"


@dataclass
class Budget:
    """Seconds left, agreed by all ranks: a loop that one rank leaves, all leave."""

    world: Any
    seconds: float
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def spent_s(self) -> float:
        """Seconds since the start, on this rank."""
        return time.perf_counter() - self.started_s

    def is_over(self, needed_s: float = 0.0) -> bool:
        """Whether fewer than `needed_s` are left, by the slowest clock; collective."""
        mine = self.spent_s + needed_s > self.seconds
        return any(self.world.mpi.allgather(mine)) if self.world.mpi is not None else mine


@dataclass
class Table:
    """Rows of one machine, one file a workload, written as they come: a run that is cut leaves what it had."""

    world: Any
    out: Path
    gpu: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, workload: str, schedule: str, dtype: str, elements: int, shape: str, samples: Sequence[float]
    ) -> float:
        """A row from this rank's samples in microseconds; returns the median of the maxima over ranks. Collective."""
        everybody = self.world.mpi.allgather(list(samples))
        worst = [max(column) for column in zip(*everybody)]
        label = machine_label(self.gpu, self.world.size)
        source = provenance(
            ranks=self.world.size, backend="cuda", seed=0, program=workload, schedule=schedule, machine=label
        )
        ordered = sorted(worst)
        row = dict(
            zip(
                COLUMNS,
                (
                    source.date, label, source.ranks, source.backend, source.versions, source.command, workload,
                    schedule, dtype, elements, shape, round(statistics.median(worst), 3),
                    round(ordered[len(ordered) // 10], 3), round(ordered[-1 - len(ordered) // 10], 3),
                    json.dumps([round(s, 3) for s in worst]),
                ),
            )
        )  # fmt: skip
        self.rows.append(row)
        if self.world.rank == 0:
            self._write(label, workload)
        return float(row["median_us"])

    def _write(self, label: str, workload: str) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / f"{label}_{workload}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(row for row in self.rows if row["workload"] == workload)

    def show(self, workload: str, dtype: str) -> None:
        """The medians of one workload as a compact table, on rank 0."""
        if self.world.rank:
            return
        chosen = [row for row in self.rows if row["workload"] == workload and row["dtype"] == dtype]
        names = list(dict.fromkeys(row["schedule"] for row in chosen))
        say(f"\n{workload} {dtype}, median µs, max over {self.world.size} ranks")
        for elements in sorted({row["elements"] for row in chosen}):
            found = {row["schedule"]: row["median_us"] for row in chosen if row["elements"] == elements}
            say(f"  {elements:>10} " + "  ".join(f"{n}={found[n]:.1f}" for n in names if n in found))


def say(text: str) -> None:
    """A line on standard output, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Timed:
    """How a thing is run on the device: `launch()` enqueues `repeats` of it on `stream`."""

    stream: Any
    launch: Callable[[], None]
    repeats: int = 1


def samples_us(world: Any, timed: Timed, event: Callable[[], Any], elapsed_ms: Callable[[Any, Any], float], count: int):
    """Microseconds of one repeat, `count` times, by events on the device; all ranks start each sample together."""
    found = []
    for _ in range(count):
        start, end = event(), event()
        world.barrier()
        start.record(timed.stream)
        timed.launch()
        end.record(timed.stream)
        end.synchronize()
        found.append(elapsed_ms(start, end) * 1e3 / timed.repeats)
    return found


def repeats_for(estimate_us: float, target_us: float = 3000.0, most: int = 50) -> int:
    """Repeats that make a sample long beside the skew of its start."""
    return int(max(1, min(most, target_us // max(estimate_us, 1.0))))


def mpi_world() -> MpiWorld:
    """The ranks of this mpiexec."""
    return MpiWorld()
