"""The meaning of every operation on simulated ranks, one function a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coconet_lab.errors import CoconetError, ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.contract import conv, matmul
from coconet_lab.ir.dtypes import DTYPES
from coconet_lab.ir.elementwise import FUNCTIONS
from coconet_lab.ir.expression import evaluate
from coconet_lab.ir.rank_values import PerRank, RankValues
from coconet_lab.ir.reductions import reduce_list, reduce_whole
from coconet_lab.ir.rng import dropout_keep, flat_indices
from coconet_lab.ir.rounding import cast, contiguous, mismatch, poisoned, rounded

Array = np.ndarray[Any, Any]


def _source(op: o.Op, at: int = 0) -> str:
    item = op.operands[at]
    if isinstance(item, str):
        return item
    raise ProgramError(f"{op.name!r} reads a number", rule=f"{op.kind} takes values", hint="an elementwise operation")


def _pointwise(ranks: RankValues, op: o.Pointwise) -> PerRank:
    kind, dtype = ranks.type_of(op), ranks.operand_dtype(op)
    function = FUNCTIONS[op.fn]

    def compute(rank: int) -> Array:
        arrays = [ranks.operand(op, at, rank, dtype) for at in range(len(op.operands))]
        result = np.asarray(function(dtype, *arrays))
        # An operand with fewer dims than the result, or a broadcast block, still fills it.
        shape = kind.local_shape(rank % ranks.size, ranks.size)
        return contiguous(np.broadcast_to(result, shape))

    return ranks.each(kind, compute)


def _cast(ranks: RankValues, op: o.Cast) -> PerRank:
    name = _source(op)
    source = ranks.program.types[name].dtype
    return ranks.each(ranks.type_of(op), lambda rank: cast(ranks.on(name, rank), source, DTYPES[op.dtype]))


def _dropout(ranks: RankValues, op: o.Dropout) -> PerRank:
    kind = ranks.type_of(op)
    name, seed_name = _source(op), _source(op, 1)
    scale = np.asarray(1.0 / (1.0 - op.p)).astype(kind.dtype.compute)

    def compute(rank: int) -> Array:
        seed = int(ranks.on(seed_name, rank))
        keep = dropout_keep(seed, op.stream, flat_indices(kind.shape, ranks.ranges(kind, rank)), op.p)
        scaled = rounded(ranks.on(name, rank).astype(kind.dtype.compute) * scale, kind.dtype)
        return np.where(keep, scaled, kind.dtype.numpy.type(0))

    return ranks.each(kind, compute)


def _matmul(ranks: RankValues, op: o.MatMul) -> PerRank:
    kind, (a, b) = ranks.type_of(op), (_source(op), _source(op, 1))
    return ranks.each(kind, lambda rank: matmul(ranks.on(a, rank), ranks.on(b, rank), kind.dtype))


def _conv(ranks: RankValues, op: o.Conv) -> PerRank:
    kind, (x, w) = ranks.type_of(op), (_source(op), _source(op, 1))
    return ranks.each(kind, lambda rank: conv(ranks.on(x, rank), ranks.on(w, rank), op.stride, op.padding, kind.dtype))


def _reduction(ranks: RankValues, op: o.Reduction) -> PerRank:
    """Over the global value, whatever its layout, so that the layout does not show in the last bit."""
    kind, name = ranks.type_of(op), _source(op)
    source = ranks.program.types[name]

    def reduce(whole: Array) -> Array:
        return reduce_list(op.fn, whole, source) if source.is_list else reduce_whole(op, whole, source.dtype)

    if source.layout.is_local:
        return ranks.each(kind, lambda rank: reduce(ranks.on(name, rank)))
    return ranks.cut(reduce(ranks.whole(name)), kind)


def _across_ranks(ranks: RankValues, name: str, reduction: str) -> Array:
    """Rank 0's value, then rank 1's, …, added in float32 (16-bit types) or the type itself, rounded once."""
    kind = ranks.program.types[name]
    values = [ranks.on(name, rank).astype(kind.dtype.compute) for rank in ranks.members(kind)]
    combine = {"+": np.add, "max": np.maximum, "min": np.minimum}[reduction]
    total = values[0]
    for value in values[1:]:
        total = combine(total, value)
    return rounded(np.asarray(total), kind.dtype)


def _all_reduce(ranks: RankValues, op: o.AllReduce | o.ReduceScatter) -> PerRank:
    return ranks.cut(_across_ranks(ranks, _source(op), op.reduction), ranks.type_of(op))


def _reduce(ranks: RankValues, op: o.Reduce) -> PerRank:
    kind = ranks.type_of(op)
    total = _across_ranks(ranks, _source(op), op.reduction)
    return ranks.each(kind, lambda rank: total if rank % ranks.size == op.root else poisoned(kind.shape, kind.dtype))


def _broadcast(ranks: RankValues, op: o.Broadcast) -> PerRank:
    kind, name = ranks.type_of(op), _source(op)
    root = ranks.members(kind)[op.root]
    return ranks.each(kind, lambda rank: ranks.on(name, root))


def _regather(ranks: RankValues, op: o.Op) -> PerRank:
    """AllGather, AllToAll and LocalSlice: the same global value, cut another way."""
    return ranks.cut(ranks.whole(_source(op)), ranks.type_of(op))


def _send(ranks: RankValues, op: o.Send) -> PerRank:
    name, steps = _source(op), op.offset * ranks.size
    found: PerRank = [None] * ranks.program.ranks
    for rank in ranks.members(ranks.type_of(op)):
        found[rank] = ranks.on(name, rank - steps)
    return found


def _update(ranks: RankValues, op: o.Update) -> PerRank:
    return list(ranks.values[_source(op, 1)])


def _custom(ranks: RankValues, op: o.Custom) -> PerRank:
    """On every rank by itself: the operator is the user's, and may not be a function of its operands alone."""
    kind, dtype = ranks.type_of(op), ranks.operand_dtype(op)
    found: PerRank = [None] * ranks.program.ranks
    for rank in ranks.members(kind):
        arrays = [ranks.operand(op, at, rank, dtype) for at in range(len(op.operands))]
        ranges = ranks.ranges(kind, rank)
        result = _meant(ranks, op, arrays, ranges)
        shape = kind.local_shape(rank % ranks.size, ranks.size)
        if result.shape != shape or result.dtype != kind.dtype.numpy:
            raise ProgramError(
                f"operator {op.operator.name!r} made {result.dtype}{list(result.shape)} for {op.name!r} on rank {rank}",
                rule=f"its meaning returns the block its type says: {kind.dtype.numpy}{list(shape)}",
                where=f"program {ranks.program.name!r}, value {op.name!r}",
                hint="operate on the arrays given, and return .astype of the type's dtype",
            )
        found[rank] = result
    return found


def _meant(ranks: RankValues, op: o.Custom, arrays: list[Array], ranges: Any) -> Array:
    """What the user's function makes of one block; what it raises is told with the operator's name."""
    try:
        return np.array(op.operator.meaning(*arrays, ranges=ranges))
    except CoconetError:
        raise
    except Exception as error:
        found = f"the meaning of operator {op.operator.name!r} raised {type(error).__name__}: {error}"
        raise ProgramError(
            " ".join(found.split()),
            rule="meaning(*arrays, ranges) gets this rank's operands, which it may not write into, and its ranges",
            where=f"program {ranks.program.name!r}, value {op.name!r}",
            hint="meaning=lambda x, ranges: x * 2",
        ) from error


def expression_fault(ranks: RankValues, op: o.Custom) -> str | None:
    """Where the kernel expression of an operator is far from its meaning, in a sentence; None where they agree.

    The square root of eps is allowed: the two may round differently, and cancel; a wrong expression is further off.
    """
    kind, dtype = ranks.type_of(op), ranks.operand_dtype(op)
    if op.operator.expression is None:
        return None
    for rank in ranks.members(kind):
        meant = ranks.on(op.name, rank)
        arrays = [ranks.operand(op, at, rank, dtype) for at in range(len(op.operands))]
        computed = evaluate(op.operator.expression, arrays, kind.dtype)
        if computed.shape != meant.shape:
            return f"it computes {list(computed.shape)} where the meaning gives {list(meant.shape)}"
        largest = float(np.max(np.abs(meant.astype(np.float64)), initial=1.0, where=np.isfinite(meant)))
        at = mismatch(computed, meant, kind.dtype.eps**0.5 * largest)
        if at is not None:
            return f"it computes {computed[at]} where the meaning gives {meant[at]}, on rank {rank} at {list(at)}"
    return None


HANDLERS: dict[type[o.Op], Callable[..., PerRank]] = {
    o.Pointwise: _pointwise,
    o.Cast: _cast,
    o.Dropout: _dropout,
    o.MatMul: _matmul,
    o.Conv: _conv,
    o.Reduction: _reduction,
    o.AllReduce: _all_reduce,
    o.ReduceScatter: _all_reduce,
    o.AllGather: _regather,
    o.AllToAll: _regather,
    o.LocalSlice: _regather,
    o.Reduce: _reduce,
    o.Broadcast: _broadcast,
    o.Send: _send,
    o.Update: _update,
    o.Custom: _custom,
}
