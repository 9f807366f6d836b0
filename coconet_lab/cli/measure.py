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


def chosen_baselines(made: Workload, wanted: Iterable[str] | None) -> tuple[str, ...]:
    """The named hand-written baselines of a workload; for None all that this machine can run.

    Raises
    ------
    UsageError
        A name there is not.
    ToolError
        A baseline that was asked for and needs what is not installed.
    """
    offered = BASELINES.get(made.name, ()) if made.dtype == "fp32" else ()
    if wanted is None:
        return tuple(name for name in offered if not _needs_torch(name) or _has_torch())
    where = f"baselines of {made.name} in {made.dtype}"
    for name in wanted:
        if not offered:
            raise UsageError(
                f"{made.name} in {made.dtype} has no baseline {name!r}",
                rule="hand-written baselines are FP32, for sgd, adam, lamb, self_attention and mlp",
                where=where,
                hint="--baselines with no name leaves them out",
            )
        known("baseline", name, offered, where=where, hint=f"--baselines {' '.join(offered)}")
        if _needs_torch(name) and not _has_torch():
            raise ToolError(
                f"the baseline {name!r} needs torch",
                rule="torch is an extra for benchmarks only",
                where=where,
                hint=".venv/bin/python -m pip install torch",
            )
    return tuple(wanted)


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
    hand = [
        _baseline(cluster, made, by_hand(made, size, name, repeats, warmup, seed))
        for name in chosen_baselines(made, baselines)
    ]
    ours = cluster.compare(
        chosen_schedules(made, schedules), repeats=repeats, warmup=warmup, seed=seed, workload=made.name, values=False
    )
    rows = (*hand, *ours.rows)
    return Comparison(rows, rows[0].schedule, ours.is_partial)


def by_hand(made: Workload, size: Size, name: str, repeats: int, warmup: int, seed: int) -> HandWritten:
    """A baseline of a workload at a size."""
    if made.name in OPTIMIZERS:
        return HandWritten(name, made.name, size.dims[0], (), repeats, warmup, seed)
    inner = size.dims[2] * (4 if made.name == "mlp" else 1)
    return HandWritten(name, made.name, 0, (*size.dims, inner), repeats, warmup, seed)


def _baseline(cluster: Cluster, made: Workload, what: HandWritten) -> Row:
    samples = cluster.call(measure, what, what=f"'{what.name}'")
    timing = Timing(tuple(max(rank[i] for rank in samples) for i in range(what.repeats)))
    output = made.program.types[made.program.outputs[0]]
    source = provenance(
        ranks=cluster.ranks, backend="cpu", seed=what.seed, program=made.name, schedule=what.name
    )  # by hand means NumPy or torch on the CPU, also where the schedules run on GPUs
    shape = "x".join(map(str, output.shape))
    return Row(what.name, made.name, "fp32", output.elements, shape, timing, Trace(), source)


def _needs_torch(name: str) -> bool:
    return name.startswith("gloo")


def _has_torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None
