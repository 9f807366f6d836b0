"""Measuring a workload's schedules and its hand-written baselines at several sizes, in one run on one cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from coconet_lab import workloads
from coconet_lab.cli.usage import UsageError, known
from coconet_lab.errors import ToolError
from coconet_lab.run.by_hand import BASELINES, HandWritten, measure
from coconet_lab.run.cluster import Cluster
from coconet_lab.run.comparison import Comparison, Row
from coconet_lab.run.provenance import provenance
from coconet_lab.run.results import Timing
from coconet_lab.run.trace import Trace
from coconet_lab.workloads import Workload

OPTIMIZERS = ("sgd", "adam", "lamb")
EPILOGUES = ("self_attention", "mlp")
NAMES = (*OPTIMIZERS, *EPILOGUES, "pipeline")

_POWER = re.compile(r"(\d+)\^(\d+)$")


@dataclass(frozen=True, slots=True)
class Size:
    """A size of a workload: elements of an optimizer, or batch × sequence × hidden of an epilogue."""

    dims: tuple[int, ...]

    def __str__(self) -> str:
        return "x".join(map(str, self.dims))


def parse_size(text: str, workload: str) -> Size:
    """``2^20``, ``1048576`` or, for epilogues, ``4x64x3072``.

    Raises
    ------
    UsageError
        Text that is no size of this workload.

    Examples
    --------
    >>> parse_size("2^20", "adam").dims, parse_size("4x64x3072", "mlp").dims
    ((1048576,), (4, 64, 3072))
    """
    count = 1 if workload in OPTIMIZERS else 3
    dims = tuple(_whole(part) for part in text.lower().split("x"))
    if len(dims) != count or None in dims or 0 in dims:
        form = "2^20" if count == 1 else "4x64x3072 (batch x sequence x hidden)"
        raise UsageError(
            f"{text!r} is no size of {workload}",
            rule="a size is elements for an optimizer, batch x sequence x hidden for the others",
            where=f"bench {workload}",
            hint=f"--sizes {form}",
        )
    return Size(tuple(d for d in dims if d is not None))


def _whole(text: str) -> int | None:
    power = _POWER.match(text)
    if power:
        return int(int(power[1]) ** int(power[2]))
    return int(text) if text.isdigit() else None


def make(workload: str, size: Size, ranks: int, dtype: str) -> Workload:
    """The workload of a name at a size."""
    maker: Callable[..., Workload] = getattr(workloads, workload)
    if workload in OPTIMIZERS:
        return maker(elements=size.dims[0], ranks=ranks, dtype=dtype)
    batch, sequence, hidden = size.dims
    extra = {"groups": 2} if workload == "pipeline" else {}
    return maker(batch=batch, sequence=sequence, hidden=hidden, ranks=ranks, dtype=dtype, **extra)


def chosen_schedules(made: Workload, wanted: Iterable[str] | None) -> dict[str, Any]:
    """The named schedules of a workload, all of them for None; unknown names are refused with the near ones."""
    names = list(made.schedules)
    where = f"schedules of {made.name}"
    picked = [known("schedule", n, names, where=where, hint=f"--schedules {names[0]}") for n in wanted or names]
    return {name: made.schedules[name] for name in picked}


def compare(
    cluster: Cluster,
    made: Workload,
    size: Size,
    *,
    schedules: Sequence[str] | None = None,
    baselines: Sequence[str] | None = None,
    repeats: int = 10,
    warmup: int = 2,
    seed: int = 0,
) -> Comparison:
    """Baselines first, then the schedules, on the same ranks; speed-ups are over the first row.

    Parameters
    ----------
    cluster : Cluster
    made : Workload
    size : Size
    schedules, baselines : names or None
        None takes all there are for the workload; baselines that need what is not installed are left out.
    repeats, warmup, seed : int
    """
    rows = [
        row
        for name in (BASELINES.get(made.name, ()) if baselines is None else baselines)
        if (row := _baseline(cluster, made, size, name, repeats, warmup, seed, must=baselines is not None))
    ]
    ours = cluster.compare(
        chosen_schedules(made, schedules), repeats=repeats, warmup=warmup, seed=seed, workload=made.name
    )
    joined = (*rows, *ours.rows)
    return Comparison(joined, joined[0].schedule)


def _baseline(
    cluster: Cluster, made: Workload, size: Size, name: str, repeats: int, warmup: int, seed: int, *, must: bool
) -> Row | None:
    if made.dtype != "fp32":
        return None
    offered = BASELINES.get(made.name, ())
    known("baseline", name, offered, where=f"baselines of {made.name}", hint=f"--baselines {' '.join(offered)}")
    is_epilogue = made.name in EPILOGUES
    shape = (*size.dims, size.dims[2] * (4 if made.name == "mlp" else 1)) if is_epilogue else ()
    elements = 0 if is_epilogue else size.dims[0]
    what = HandWritten(name, made.name, elements, shape, repeats, warmup, seed)
    if name.startswith("gloo") and not _has_torch():
        if must:
            raise ToolError(
                f"the baseline {name!r} needs torch",
                rule="torch is an extra for benchmarks only",
                where=f"baselines of {made.name}",
                hint=".venv/bin/pip install 'coconet-lab[bench]'",
            )
        return None
    samples = cluster.call(measure, what, what=f"'{name}'")
    timing = Timing(tuple(max(rank[i] for rank in samples) for i in range(repeats)))
    output = made.program.types[made.program.outputs[0]]
    source = provenance(ranks=cluster.ranks, backend=cluster.backend.name, seed=seed, program=made.name, schedule=name)
    return Row(name, made.name, "fp32", output.elements, "x".join(map(str, output.shape)), timing, Trace(), source)


def _has_torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None
