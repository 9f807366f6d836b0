"""Whether ranks hold the values they should, and the first place where they do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coconet_lab.ir.rounding import allowance, mismatch
from coconet_lab.ir.types import TensorType

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element of a value that differs: on which rank, at which global index, and both values."""

    name: str
    rank: int
    index: tuple[int, ...]
    found: Any
    expected: Any

    def __str__(self) -> str:
        at = f" at {list(self.index)}" if self.index else ""
        return f"{self.name!r} differs on rank {self.rank}{at}: {self.found} instead of {self.expected}"


def first_difference(
    name: str,
    kind: TensorType,
    held: Iterable[tuple[int, Array]],
    expected: Array,
    *,
    group_ranks: int,
    tolerant: bool = False,
) -> Difference | None:
    """Compare what each rank holds of a value with the global value it should have.

    Parameters
    ----------
    name : str
    kind : TensorType
        The type of what is held: it says which block a rank has.
    held : iterable of (rank of the program, array)
    expected : array
        The global value; a Local value has a leading rank axis.
    group_ranks : int
        Ranks of a group.
    tolerant : bool
        Allow 16 eps of the largest magnitude: for values below an inexact reordered sum.
    """
    allowed = allowance(expected, kind.dtype) if tolerant else 0.0
    for rank, array in held:
        k = rank % group_ranks
        ranges = kind.ranges(k, group_ranks)
        shape = (group_ranks, *kind.shape) if kind.layout.is_local else kind.shape
        if expected.shape != shape:
            return Difference(name, rank, (), f"shape {list(shape)}", f"shape {list(expected.shape)}")
        part = expected[k] if kind.layout.is_local else expected[tuple(slice(*r) for r in ranges)]
        if array.shape != part.shape or array.dtype != part.dtype:
            return Difference(name, rank, (), f"{array.dtype}{list(array.shape)}", f"{part.dtype}{list(part.shape)}")
        at = mismatch(array, part, allowed)
        if at is not None:
            index = tuple(i + start for i, (start, _) in zip(at, ranges))
            return Difference(name, rank, index, array[at].item(), part[at].item())
    return None
