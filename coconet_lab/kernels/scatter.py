"""Where the tensors of a list lie in its buffer: apart from each other, each at a place of its own (paper §5.4).

Kernels find an element by its bucket: the bucket says which tensor it belongs to, and a table with one number a tensor
and buffer says how far that tensor lies from where it would be if all followed each other.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from coconet_lab.ir.types import Range, TensorType
from coconet_lab.kernels.plan import Buffer

Array = np.ndarray[Any, Any]
_ALIGNMENT = 256


def reserved_elements(buffer: Buffer, ranks: int) -> int:
    """Elements a scattered buffer spans, gaps included: the same on all ranks of a group.

    Examples
    --------
    >>> from coconet_lab.ir.dtypes import FP32
    >>> from coconet_lab.ir.layout import Local
    >>> kind = TensorType(FP32, (9,), Local, pieces=((3, 2), (3,)))
    >>> buffer = Buffer("b0", "g", kind, "whole", "input", False, 0, 36, 0, 0, scattered=True)
    >>> reserved_elements(buffer, 1)
    256
    """
    indices = range(ranks) if buffer.placement == "block" else range(1)
    return max(_layout(buffer, index, ranks)[1] for index in indices)


def shifts(buffer: Buffer, index: int, ranks: int) -> Array:
    """For each tensor of a list, what turns a flat index of the list into an element of the buffer of rank `index`.

    The numbers may be negative: tensors lie in an order of their own.
    """
    if buffer.scattered:
        return _layout(buffer, index, ranks)[0]
    return np.full(len(buffer.type.pieces), -_held(buffer, index, ranks)[0], np.int64)


def spans(buffer: Buffer, kind: TensorType, index: int, ranks: int) -> list[Range]:
    """The elements of the buffer that a list value takes on rank `index`, a half-open range a tensor, none empty.

    `kind` is the value's type: of a buffer with all of it, a sliced value takes this rank's block.
    """
    away = shifts(buffer, index, ranks)
    ((low, high),) = kind.ranges(index, ranks)
    return [(a + int(away[at]), b + int(away[at])) for at, (a, b) in _cut(kind, low, high) if a < b]


def _cut(kind: TensorType, low: int, high: int) -> Iterator[tuple[int, Range]]:
    """The part of every tensor of a list that is in a range of flat indices."""
    for at, (start, stop) in enumerate(pairwise(kind.piece_starts())):
        yield at, (max(start, low), min(stop, high))


def _held(buffer: Buffer, index: int, ranks: int) -> Range:
    """Flat indices of the elements that the buffer has."""
    if buffer.placement == "whole":
        return 0, math.prod(buffer.type.shape)
    ((low, high),) = buffer.type.ranges(index, ranks)
    return low, high


def _layout(buffer: Buffer, index: int, ranks: int) -> tuple[Array, int]:
    """The shifts, and the elements they span: tensors in a shuffled order, each at a multiple of 256 bytes."""
    unit = _ALIGNMENT // buffer.type.dtype.itemsize
    found = np.zeros(len(buffer.type.pieces), np.int64)
    salt = zlib.crc32(buffer.name.encode("utf-8", "surrogatepass"))
    parts = list(_cut(buffer.type, *_held(buffer, index, ranks)))
    at = 0
    for piece, (start, stop) in sorted(parts, key=lambda part: (part[0] * 2_654_435_761 + salt) % 2**32):
        if start < stop:
            found[piece] = at - start
            at += -(-(stop - start) // unit) * unit + unit  # never does the next one follow at once
    return found, at
