"""The type of a value: element type, global shape, layout, group; and which block of it a rank holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.layout import Layout

Range = tuple[int, int]
BUCKET_ELEMENTS = 1024


def block_range(extent: int, rank: int, ranks: int, unit: int = 1) -> Range:
    """Half-open range of block `rank` of `extent` elements cut among `ranks` in ceil-sized blocks of whole `unit`s.

    Examples
    --------
    >>> [block_range(10, k, 4) for k in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    size = block_extent(extent, ranks, unit)
    return min(rank * size, extent), min((rank + 1) * size, extent)


def block_extent(extent: int, ranks: int, unit: int = 1) -> int:
    """Elements of the largest block: the storage every rank reserves for a sliced dimension."""
    units = -(-extent // unit)
    return -(-units // ranks) * unit


@dataclass(frozen=True, slots=True)
class TensorType:
    """What is known of a value before it runs.

    Parameters
    ----------
    dtype : DType
    shape : tuple of int
        Global shape; ``()`` for a scalar. A list value has one flat dimension.
    layout : Layout
    group : int or None
        The process group the value lives in; None for scalars that every group has.
    pieces : tuple of shapes
        For a list value, the shapes of its tensors; their elements follow each other in the flat dimension.
    per_piece : bool
        True for the result of a reduction of a list value: one scalar per tensor of the list.
    bucket : int
        Elements a bucket; blocks of a list value are cut at bucket borders (paper §5.4).
    """

    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    group: int | None = 0
    pieces: tuple[tuple[int, ...], ...] = ()
    per_piece: bool = False
    bucket: int = BUCKET_ELEMENTS

    @property
    def elements(self) -> int:
        """Number of elements of the global value."""
        return math.prod(self.shape)

    @property
    def is_list(self) -> bool:
        """Whether the value is a list of tensors laid end to end."""
        return bool(self.pieces) and not self.per_piece

    @property
    def is_scalar(self) -> bool:
        """Whether the value is zero-dimensional (one per tensor of a list counts too)."""
        return self.shape == () or self.per_piece

    def with_layout(self, layout: Layout) -> TensorType:
        """The same value in another layout."""
        return replace(self, layout=layout)

    def piece_starts(self) -> tuple[int, ...]:
        """Flat index where each tensor of a list value starts, and the total at the end."""
        starts = [0]
        for piece in self.pieces:
            starts.append(starts[-1] + math.prod(piece))
        return tuple(starts)

    def bucket_starts(self) -> tuple[int, ...]:
        """Flat index where each bucket of a list value starts, and the total at the end; none crosses a tensor."""
        starts = self.piece_starts()
        borders = [at for a, b in pairwise(starts) for at in range(a, b, self.bucket)]
        return (*borders, starts[-1])

    def _bucket_start(self, starts: tuple[int, ...], counts: list[int], bucket: int) -> int:
        """As ``bucket_starts()[bucket]``, without listing what may be hundreds of thousands of buckets."""
        for start, count in zip(starts, counts):
            if bucket < count:
                return start + bucket * self.bucket
            bucket -= count
        return starts[-1]

    def ranges(self, rank: int, ranks: int) -> tuple[Range, ...]:
        """The part of each dimension that `rank` of a group of `ranks` holds, as half-open ranges."""
        if not self.layout.is_sliced:
            return tuple((0, n) for n in self.shape)
        if self.is_list:
            starts = self.piece_starts()
            counts = [-(-(b - a) // self.bucket) for a, b in pairwise(starts)]
            first, last = block_range(sum(counts), rank, ranks)
            return ((self._bucket_start(starts, counts, first), self._bucket_start(starts, counts, last)),)
        return tuple(
            block_range(n, rank, ranks) if dim == self.layout.dim else (0, n) for dim, n in enumerate(self.shape)
        )

    def local_shape(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Shape of what `rank` of a group of `ranks` holds; the last blocks may be smaller or empty."""
        return tuple(stop - start for start, stop in self.ranges(rank, ranks))

    def stored_shape(self, ranks: int) -> tuple[int, ...]:
        """Shape every rank reserves: the largest block, so that all ranks' buffers are equal."""
        if not self.layout.is_sliced:
            return self.shape
        if self.is_list:
            return (max(self.local_shape(k, ranks)[0] for k in range(ranks)),)
        return tuple(block_extent(n, ranks) if d == self.layout.dim else n for d, n in enumerate(self.shape))

    def stored_bytes(self, ranks: int) -> int:
        """Bytes every rank reserves for the value."""
        return math.prod(self.stored_shape(ranks)) * self.dtype.itemsize

    def __repr__(self) -> str:
        shape = f"{len(self.pieces)} tensors, {self.elements}" if self.pieces else ", ".join(map(str, self.shape))
        where = f" group {self.group}" if self.group else ""
        return f"{self.dtype}[{shape}] {self.layout}{where}"
