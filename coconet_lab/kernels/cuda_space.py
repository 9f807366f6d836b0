"""How a CUDA kernel walks its index space: dims folded, rows cut into 16-byte vectors, blocks found on the host.

Neighbouring dims that every tensor either has or broadcasts, and that neither a block nor a chunk nor a reduction
cuts between, are one dim to the kernel: most kernels walk a single one, with no division at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from coconet_lab.ir.types import Range, block_extent, block_range
from coconet_lab.kernels.kernel import Drop, Kernel, Space, TensorParam

VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Folding:
    """The dims of a kernel's space as its text sees them.

    Parameters
    ----------
    dims : tuple of tuples of int
        The space's dims, in order, in runs that are walked as one. A zero-dim space is one run of nothing.
    present : tuple of tuples of bool
        For every tensor, whether it has each run (else it is broadcast along it).
    width : int
        Elements of a vector: 16 bytes of the smallest type that has the last run; 1 where nothing has it.
    has_dropout : bool
        Masks are drawn four neighbours a call, so vectors must start at multiples of four.
    """

    dims: tuple[tuple[int, ...], ...]
    present: tuple[tuple[bool, ...], ...]
    width: int
    has_dropout: bool

    def steps(self, tensor: int) -> tuple[int, ...]:
        """The runs but the last that a tensor has: each needs a step in elements at run time."""
        return tuple(run for run in range(len(self.dims) - 1) if self.present[tensor][run])


def fold(kernel: Kernel) -> Folding:
    """The folding of a kernel's space; it depends on the pattern of extents alone, not on the extents."""
    space = kernel.space
    rank = len(space.shape)
    has = [tuple(_has(t, space, d) for d in range(rank)) for t in kernel.tensors]
    reduced = [set(range(rank)) if a.dims is None else set(a.dims) for a in kernel.accumulators]
    runs: list[tuple[int, ...]] = [()] if rank == 0 else [(0,)]
    for d in range(1, rank):
        starts_new = (
            d in (space.dim, space.chunk_dim)
            or any(pattern[d] != pattern[d - 1] for pattern in has)
            or any((d in dims) != (d - 1 in dims) for dims in reduced)
        )
        if starts_new:
            runs.append((d,))
        else:
            runs[-1] = (*runs[-1], d)
    present = tuple(tuple(all(pattern[d] for d in run) and bool(run) for run in runs) for pattern in has)
    sizes = [t.dtype.itemsize for t, runs_of in zip(kernel.tensors, present) if runs_of[-1]]
    width = VECTOR_BYTES // min(sizes) if sizes else 1
    return Folding(tuple(runs), present, width, any(isinstance(s, Drop) for s in kernel.statements()))


def _has(tensor: TensorParam, space: Space, dim: int) -> bool:
    if space.pieces and tensor.shape != space.shape:
        return False  # one element a tensor of the list, or one for all
    own = dim - (len(space.shape) - len(tensor.shape))
    return own >= 0 and not tensor.per_piece and tensor.shape[own] == space.shape[dim]


@dataclass(frozen=True, slots=True)
class Walk:
    """The part of a space that one launch of one rank walks, in the numbers its kernel takes.

    Parameters
    ----------
    extents : tuple of int
        Elements along each run.
    index, index_steps : int, tuple of int
        Global flat index of the first element, and what one step along each run adds.
    origins, steps : tuples
        For every tensor: elements from its buffer's start to the first element, and what one step along each run adds.
    total : int
        Elements walked.
    """

    extents: tuple[int, ...]
    index: int
    index_steps: tuple[int, ...]
    origins: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> int:
        """Elements walked."""
        return math.prod(self.extents)


@lru_cache(maxsize=8)
def piece_borders(space: Space) -> tuple[int, ...]:
    """Flat index where each bucket of a list space starts, and the total at the end; none crosses a tensor."""
    starts = (0, *accumulate(math.prod(piece) for piece in space.pieces))
    inner = [at for a, b in pairwise(starts) for at in range(a, b, space.bucket)]
    return (*inner, starts[-1])


def block_of(space: Space, rank: int) -> tuple[Range, ...]:
    """Global index range of every dim that `rank` of the group walks."""
    if space.dim is None:
        return tuple((0, n) for n in space.shape)
    if space.pieces:
        borders = piece_borders(space)
        first, last = block_range(len(borders) - 1, rank, space.parts)
        return ((borders[first], borders[last]),)
    return tuple(block_range(n, rank, space.parts) if d == space.dim else (0, n) for d, n in enumerate(space.shape))


def walk(kernel: Kernel, rank: int, chunk: Range | None = None) -> Walk:
    """What `rank` of the group walks; `chunk` cuts the space's chunk dim (relative to the block if that is sliced).

    Examples
    --------
    >>> from coconet_lab.ir.dtypes import FP32
    >>> k = Kernel("k", Space((10,), 0, 4), (TensorParam("x", FP32, (10,), "whole"),), (), (), ())
    >>> walk(k, 3).origins, walk(k, 3).extents
    ((9,), (1,))
    """
    space, folding = kernel.space, fold(kernel)
    ranges = list(block_of(space, rank))
    if chunk is not None and space.chunk_dim is not None:
        start, stop = ranges[space.chunk_dim]
        base = start if space.chunk_dim == space.dim else 0
        ranges[space.chunk_dim] = (min(base + chunk[0], stop), min(base + chunk[1], stop))
    starts = [start for start, _ in ranges]
    counts = [max(0, stop - start) for start, stop in ranges]
    strides = _strides(space.shape)
    blocks = block_of(space, rank)
    origins, steps = [], []
    for t, tensor in enumerate(kernel.tensors):
        own = _tensor_strides(tensor, space)
        # A block buffer starts where this rank's block does.
        zero = [blocks[d][0] if tensor.placement == "block" and d == space.dim else 0 for d in range(len(starts))]
        origins.append(sum((starts[d] - zero[d]) * own[d] for d in range(len(starts))))
        steps.append(tuple(own[run[-1]] if run and folding.present[t][r] else 0 for r, run in enumerate(folding.dims)))
    return Walk(
        extents=tuple(math.prod(counts[d] for d in run) for run in folding.dims),
        index=sum(start * stride for start, stride in zip(starts, strides)),
        index_steps=tuple(strides[run[-1]] if run else 0 for run in folding.dims),
        origins=tuple(origins),
        steps=tuple(steps),
    )


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _tensor_strides(tensor: TensorParam, space: Space) -> tuple[int, ...]:
    """Elements that one step along each dim of the space adds; 0 where the tensor is broadcast."""
    shift = len(space.shape) - len(tensor.shape)
    stored = list(tensor.shape)
    if tensor.placement == "block" and space.dim is not None and space.dim >= shift and not space.pieces:
        own = space.dim - shift
        if tensor.shape[own] == space.shape[space.dim]:
            stored[own] = block_extent(tensor.shape[own], space.parts)
    own_strides = _strides(tuple(stored))
    return tuple(own_strides[d - shift] if _has(tensor, space, d) else 0 for d in range(len(space.shape)))


def vector_counts(kernel: Kernel, found: Walk, addresses: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """How many vectors a launch walks, and the first element that is left to the one-by-one path.

    Parameters
    ----------
    addresses : tuple of tuples of int
        For every tensor, the addresses of its first walked element (several for a table of peers).
    """
    folding = fold(kernel)
    width, last = folding.width, found.extents[-1]
    outer = [r for r in range(len(found.extents) - 1) if found.extents[r] > 1]
    aligned = width > 1 and (not outer or last % width == 0)
    for t, tensor in enumerate(kernel.tensors):
        if folding.present[t][-1]:
            aligned = aligned and all(address % VECTOR_BYTES == 0 for address in addresses[t])
            aligned = aligned and all(found.steps[t][r] * tensor.dtype.itemsize % VECTOR_BYTES == 0 for r in outer)
    if folding.has_dropout:
        aligned = aligned and found.index % 4 == 0 and all(found.index_steps[r] % 4 == 0 for r in outer)
    if not aligned:
        return 0, 0
    if outer:
        return found.total // width, found.total
    return last // width, last - last % width
