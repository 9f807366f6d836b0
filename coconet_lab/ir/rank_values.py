"""Values as the simulated ranks hold them: one array a rank, read at blocks, joined to global values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import INT32, DType
from coconet_lab.ir.program import Program
from coconet_lab.ir.rounding import contiguous, literal
from coconet_lab.ir.types import Range, TensorType

Array = np.ndarray[Any, Any]
PerRank = list[Array | None]


class RankValues:
    """All values of one run, and how an operation reads them on a rank."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.size = program.group_ranks
        self.values: dict[str, PerRank] = {}

    def store(self, name: str, per_rank: PerRank) -> None:
        """Keep a value; nobody may write into it any more."""
        self.values[name] = [None if array is None else _read_only(array) for array in per_rank]

    def type_of(self, op: o.Op) -> TensorType:
        """Type of an operation's result."""
        return self.program.types[op.name]

    def members(self, kind: TensorType) -> range:
        """Ranks of the program that hold a value of this type."""
        return self.group_members(kind.group)

    def group_members(self, group: int | None) -> range:
        """Ranks of a group; of all groups where it is None."""
        if group is None:
            return range(self.program.ranks)
        return range(group * self.size, (group + 1) * self.size)

    def on(self, name: str, rank: int) -> Array:
        """What a rank holds of a value."""
        found = self.values[name][rank]
        if found is None:
            raise IndexError(f"rank {rank} does not hold {name!r}")
        return found

    def each(self, kind: TensorType, compute: Callable[[int], Array]) -> PerRank:
        """``compute(rank)`` on the ranks of a type's group; once where all of them would compute the same."""
        members = self.members(kind)
        once = compute(members[0]) if kind.layout.is_replicated else None
        found: PerRank = [None] * self.program.ranks
        for rank in members:
            found[rank] = compute(rank) if once is None else once
        return found

    def ranges(self, kind: TensorType, rank: int) -> tuple[Range, ...]:
        """The part of each dim a rank of the program holds."""
        return kind.ranges(rank % self.size, self.size)

    def whole(self, name: str) -> Array:
        """The global value: Replicated as any rank has it, blocks joined, Local with a leading axis over the group."""
        kind = self.program.types[name]
        return joined(kind, [self.on(name, rank) for rank in self.group_members(kind.group or 0)])

    def cut(self, whole: Array, kind: TensorType) -> PerRank:
        """Every rank's part of a global value that all ranks could form."""
        return self.each(kind, lambda rank: contiguous(whole[slices(self.ranges(kind, rank))]))

    def operand(self, op: o.Op, at: int, rank: int, dtype: DType) -> Array:
        """Operand number `at` of an elementwise operation on a rank, cut to what the result needs of it.

        A Replicated operand is read at this rank's block where it has the sliced dim, else whole; a number takes
        `dtype`; scalars per tensor of a list are spread over the tensors' elements.
        """
        item = op.operands[at]
        if not isinstance(item, str):
            return literal(item.resolve(self.size), dtype)
        kind, result = self.program.types[item], self.type_of(op)
        array = self.on(item, rank)
        if kind.per_piece and result.is_list:
            return spread(array, result)[slices(self.ranges(result, rank))]
        if kind.layout.is_replicated and result.layout.is_sliced:
            return contiguous(array[block_slices(kind, result, self.ranges(result, rank))])
        return array

    def operand_dtype(self, op: o.Op) -> DType:
        """The dtype a Python number among the operands takes: that of the first value beside it."""
        kinds = [self.program.types[x] for x in op.operands if isinstance(x, str)]
        if op.kind == "Where" and isinstance(op.operands[0], str):
            kinds = kinds[1:]
        return kinds[0].dtype if kinds else INT32


def _read_only(array: Array) -> Array:
    """A view, so that an array of the user's own stays as writable as it was."""
    view = array.view()
    view.flags.writeable = False
    return view


def joined(kind: TensorType, held: Sequence[Array]) -> Array:
    """The global value of what the ranks of a group hold, in rank order; a Local one has a leading rank axis."""
    if kind.layout.is_replicated:
        return held[0]
    return np.stack(held) if kind.layout.is_local else np.concatenate(held, axis=kind.layout.dim or 0)


def slices(ranges: tuple[Range, ...]) -> tuple[slice, ...]:
    """Half-open ranges as an index."""
    return tuple(slice(*r) for r in ranges)


def block_slices(kind: TensorType, result: TensorType, ranges: tuple[Range, ...]) -> tuple[slice, ...]:
    """Where a whole operand is read for a block of the result: shapes align right, broadcast dims are read whole."""
    shift = len(result.shape) - len(kind.shape)
    return tuple(
        slice(*ranges[dim + shift]) if extent == result.shape[dim + shift] else slice(None)
        for dim, extent in enumerate(kind.shape)
        if dim + shift >= 0
    )


def spread(scalars: Array, kind: TensorType) -> Array:
    """One scalar per tensor of a list, repeated for each of the tensor's elements."""
    return np.repeat(scalars, np.diff(kind.piece_starts()))
