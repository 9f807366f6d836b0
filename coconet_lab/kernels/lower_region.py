"""The index space a set of operations shares, and which of its dims a value spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import BUCKET_ELEMENTS, TensorType
from coconet_lab.kernels.kernel import Space
from coconet_lab.kernels.lower_memory import source_of


class UnfitError(Exception):
    """These operations are no single kernel; they are lowered one by one."""


@dataclass(frozen=True, slots=True)
class Region:
    """An index space before it is a kernel's.

    Parameters
    ----------
    shape : tuple of int
    dim : int or None
        The sliced dim.
    pieces, bucket
        As in `TensorType`, for list values.
    """

    shape: tuple[int, ...]
    dim: int | None
    pieces: tuple[tuple[int, ...], ...]
    bucket: int

    @property
    def is_point(self) -> bool:
        """One element on every rank: nothing is gained by treating scalars apart."""
        return self.dim is None and all(n == 1 for n in self.shape)

    def is_uniform(self, kind: TensorType) -> bool:
        """Whether a value has one element for the whole space."""
        return not self.is_point and not kind.layout.is_sliced and all(n == 1 for n in kind.shape) and not kind.pieces

    def is_per_piece(self, kind: TensorType) -> bool:
        """Whether a value has one element per tensor of the space's list."""
        return bool(self.pieces) and kind.per_piece

    def is_full(self, kind: TensorType) -> bool:
        """Whether a value has an element of its own at every element of the space."""
        return kind.shape == self.shape and not self.is_per_piece(kind)

    def is_cut(self, kind: TensorType) -> bool:
        """Whether a value has the sliced dim, so that a rank that walks its block sees a part of it only."""
        if self.dim is None or self.is_per_piece(kind) or self.is_uniform(kind):
            return False
        at = self.dim - len(self.shape) + len(kind.shape)
        return at >= 0 and kind.shape[at] == self.shape[self.dim]

    def space(self, ranks: int) -> Space:
        """The kernel's index space."""
        return Space(self.shape, self.dim, ranks, None, self.pieces, self.bucket)


def region_of(program: Program, members: Iterable[str]) -> Region:
    """The index space of operations: the broadcast of their shapes, and the one dim that is sliced.

    Raises
    ------
    UnfitError
        Two different lists, or two sliced dims.
    """
    kinds = [kind for member in members for kind in _walked(program, member)]
    lists = {(kind.pieces, kind.bucket, kind.shape) for kind in kinds if kind.is_list}
    if len(lists) > 1:
        raise UnfitError("two lists")
    if lists:
        ((pieces, bucket, shape),) = lists
        kinds = [kind for kind in kinds if not kind.per_piece]
    else:
        pieces, bucket, shape = (), BUCKET_ELEMENTS, _broadcast([kind.shape for kind in kinds])
    dims = {(kind.layout.dim or 0) + len(shape) - len(kind.shape) for kind in kinds if kind.layout.is_sliced}
    if len(dims) > 1:
        raise UnfitError("two sliced dims")
    return Region(shape, next(iter(dims), None), pieces, bucket)


def _walked(program: Program, member: str) -> Iterator[TensorType]:
    """What a kernel walks for an operation: a reduction's operand, a gather's blocks, else the result."""
    op = program.ops[member]
    if isinstance(op, o.Reduction | o.AllGather):
        yield program.types[source_of(op)]
    else:
        yield program.types[member]


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for dim, extent in enumerate(shape, rank - len(shape)):
            if extent != 1:
                result[dim] = extent
    return tuple(result)
