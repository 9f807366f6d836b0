"""How a CPU kernel walks its index space: a few outer loops around one contiguous run.

Neighbouring dims become one loop where every tensor agrees: none is broadcast along one and not along the other, and
no rank or chunk cuts the inner one. The innermost loop is then a run of neighbouring elements in every tensor that
varies along it, and in the flat index that dropout counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from coconet_lab.kernels.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Walk:
    """The loops of a kernel, outermost first.

    Parameters
    ----------
    levels : tuple of tuples of int
        The dims of the space that each loop walks. For a list that is scattered or has values per tensor the outermost
        loop is over the tensors, and has no dims.
    tensors : tuple of frozensets of int
        For each tensor, the loops it varies along; a scattered one lies elsewhere for each tensor of the list.
    accumulators : tuple of frozensets of int
        For each reduction, the loops its results vary along.
    by_piece : bool
        Whether the outermost loop is over the tensors of a list.
    """

    levels: tuple[tuple[int, ...], ...]
    tensors: tuple[frozenset[int], ...]
    accumulators: tuple[frozenset[int], ...]
    by_piece: bool

    @property
    def run(self) -> int:
        """The number of the innermost loop."""
        return len(self.levels) - 1

    def depth(self, varies: frozenset[int]) -> int:
        """How many loops surround a value that varies along these."""
        return max(varies, default=-1) + 1

    def level_of(self, dim: int | None) -> int | None:
        """The loop that walks a dim."""
        return next((at for at, dims in enumerate(self.levels) if dim in dims), None)


def walk(kernel: Kernel) -> Walk:
    """The loops of `kernel`."""
    space = kernel.space
    rank = len(space.shape)
    tensor_dims = [_varying(kernel, t) for t in range(len(kernel.tensors))]
    kept = [frozenset(range(rank)) - frozenset(range(rank) if a.dims is None else a.dims) for a in kernel.accumulators]
    levels: list[tuple[int, ...]] = []
    for dim in range(rank):
        if levels and dim not in (space.dim, space.chunk_dim) and _agree(levels[-1][-1], dim, [*tensor_dims, *kept]):
            levels[-1] = (*levels[-1], dim)
        else:
            levels.append((dim,))
    apart = [is_per_piece(kernel, t) or tensor.scattered for t, tensor in enumerate(kernel.tensors)]
    by_piece = bool(space.pieces) and (any(apart) or any(a.per_piece for a in kernel.accumulators))
    if by_piece or not levels:
        levels.insert(0, ())
    tensors = [_levels(levels, dims) | _piece(apart[t]) for t, dims in enumerate(tensor_dims)]
    results = [_levels(levels, dims) | _piece(a.per_piece) for a, dims in zip(kernel.accumulators, kept)]
    return Walk(tuple(levels), tuple(tensors), tuple(results), by_piece)


def is_per_piece(kernel: Kernel, tensor: int) -> bool:
    """Whether a tensor holds one element for each tensor of the list that the kernel walks."""
    param, pieces = kernel.tensors[tensor], kernel.space.pieces
    return param.per_piece or (bool(pieces) and param.shape == (len(pieces),) != kernel.space.shape)


def _varying(kernel: Kernel, tensor: int) -> frozenset[int]:
    """The dims of the space a tensor is not broadcast along."""
    if is_per_piece(kernel, tensor):
        return frozenset()
    space, shape = kernel.space.shape, kernel.tensors[tensor].shape
    shift = len(space) - len(shape)
    return frozenset(dim + shift for dim, extent in enumerate(shape) if extent == space[dim + shift])


def _agree(outer: int, inner: int, patterns: list[frozenset[int]]) -> bool:
    return all((outer in dims) == (inner in dims) for dims in patterns)


def _levels(levels: list[tuple[int, ...]], dims: frozenset[int]) -> frozenset[int]:
    return frozenset(at for at, walked in enumerate(levels) if walked and walked[0] in dims)


def _piece(per_piece: bool) -> frozenset[int]:
    return frozenset({0}) if per_piece else frozenset()
