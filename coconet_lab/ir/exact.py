"""Which sums come out the same in any order, and what lies below those that do not (design §4a, check())."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from coconet_lab.ir import ops as o
from coconet_lab.ir.contract import conv
from coconet_lab.ir.dtypes import FP64
from coconet_lab.ir.oracle import OracleRun
from coconet_lab.ir.program import Program

Array = np.ndarray[Any, Any]

SUMS = ("sum", "mean", "norm")
# What whole numbers stay whole under: sums, differences, products, and moving values about.
_KEEPS_INTEGERS = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Copy", "Maximum", "Minimum"})
_MOVES = (
    o.MatMul, o.Conv, o.Cast, o.LocalSlice, o.AllReduce, o.ReduceScatter, o.Reduce, o.AllGather, o.AllToAll,
    o.Broadcast, o.Send, o.Update,
)  # fmt: skip


def cross_rank_sums(program: Program) -> tuple[str, ...]:
    """Names of the operations that add values of several ranks."""
    return tuple(name for name, op in program.ops.items() if _is_cross_rank_sum(program, op))


def _is_cross_rank_sum(program: Program, op: o.Op) -> bool:
    if isinstance(op, o.AllReduce | o.ReduceScatter | o.Reduce):
        return op.reduction == "+"
    if not isinstance(op, o.Reduction) or op.fn not in SUMS:
        return False
    source = program.types[next(op.sources)]
    return source.layout.is_sliced and (op.dims is None or source.is_list or source.layout.dim in op.dims)


def integer_inputs(program: Program) -> frozenset[str]:
    """Inputs from which sums, differences, products and matmuls lead to a sum across ranks."""
    reached: set[str] = set()
    stack = [source for name in cross_rank_sums(program) for source in program.ops[name].sources]
    while stack:
        name = stack.pop()
        op = program.ops[name]
        if name in reached:
            continue
        reached.add(name)
        if _keeps_integers(op):
            stack += op.sources
    return frozenset(name for name in reached if isinstance(program.ops[name], o.Input))


def _keeps_integers(op: o.Op) -> bool:
    if isinstance(op, o.Pointwise):
        return op.fn in _KEEPS_INTEGERS
    return isinstance(op, _MOVES) or (isinstance(op, o.Reduction) and op.fn in ("sum", "max", "min"))


def inexact_sums(run: OracleRun) -> frozenset[str]:
    """Sums (matmuls and convs too) whose result may depend on the order of their terms.

    A sum is exact if its terms are integers whose magnitudes add up to no more than the dtype holds exactly.
    """
    return frozenset(name for name in run.program.ops if not _is_exact(run, name))


def _is_exact(run: OracleRun, name: str) -> bool:
    op, kind = run.program.ops[name], run.program.types[name]
    if not kind.dtype.is_float:
        return True
    with np.errstate(invalid="ignore"):  # infinity stands for a term that is no integer, and meets zeros
        return all(np.isfinite(total) and total <= kind.dtype.exact_limit for total in _magnitudes(run, op))


def _magnitudes(run: OracleRun, op: o.Op) -> Iterator[float]:
    """The largest sum of magnitudes of each of an operation's sums; infinite where a term is no integer."""
    if isinstance(op, o.AllReduce | o.ReduceScatter | o.Reduce) and op.reduction == "+":
        yield _largest(sum(_whole_numbers(x) for x in _held(run, next(op.sources))))
    elif isinstance(op, o.Reduction) and op.fn in SUMS:
        source = next(op.sources)
        local = run.program.types[source].layout.is_local
        for values in _held(run, source) if local else [run.output(source)]:
            terms = _whole_numbers(values)
            yield float((terms * terms if op.fn == "norm" else terms).sum())
    elif isinstance(op, o.MatMul):
        for a, b in zip(*(_held(run, source) for source in _both(op))):
            yield _largest(np.matmul(_whole_numbers(a), _whole_numbers(b)))
    elif isinstance(op, o.Conv):
        for x, w in zip(*(_held(run, source) for source in _both(op))):
            yield _largest(conv(_whole_numbers(x), _whole_numbers(w), op.stride, op.padding, FP64))


def _both(op: o.Op) -> list[str]:
    """Both operands' names, also where they are one."""
    return [x for x in op.operands if isinstance(x, str)]


def _held(run: OracleRun, name: str) -> list[Array]:
    """What the ranks of the value's group hold, in rank order."""
    return [array for array in run.values[name] if array is not None]


def _whole_numbers(values: Array) -> Array:
    wide = np.abs(values.astype(np.float64))
    return np.where(wide == np.floor(wide), wide, np.inf)


def _largest(totals: Any) -> float:
    totals = np.asarray(totals)
    return float(totals.max()) if totals.size else 0.0


def below(program: Program, names: Iterable[str]) -> frozenset[str]:
    """These values and all that are computed from them."""
    found = set(names)
    for name, op in program.ops.items():
        if any(source in found for source in op.sources):
            found.add(name)
    return frozenset(found)


def reordered(base: Program, changed: Program, sums: Iterable[str]) -> frozenset[str]:
    """Those of `base`'s sums that `changed` computes in another order, or whose order it leaves to a kernel."""
    return frozenset(name for name in sums if _is_reordered(base, changed, name))


def _is_reordered(base: Program, changed: Program, name: str) -> bool:
    op, now = base.ops[name], changed.ops.get(name)
    if now is None or now.kind != op.kind or name in changed.fusion_of:
        return True
    before = [base.types[source].layout for source in op.sources]
    after = [changed.types[source].layout for source in now.sources]
    return before != after and not isinstance(op, o.MatMul | o.Conv)


def within_tolerance(run: OracleRun, *, device: bool = False) -> frozenset[str]:
    """Values an engine may compute with a tolerance: below inexact sums, on a device also below exp and kin.

    Parameters
    ----------
    run : OracleRun
        Of the program and inputs the engine ran.
    device : bool
        Whether the engine's functions are a device's own.
    """
    program = run.program
    roots = set(inexact_sums(run))
    if device:
        roots |= {name for name, op in program.ops.items() if isinstance(op, o.Pointwise) and op.fn in o.INEXACT}
    return below(program, roots)
