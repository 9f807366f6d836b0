"""The same program with small extents, for proofs that take milliseconds (design §4a, check())."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program, retyped
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.verify import verify


def shrunk(program: Program) -> Program:
    """`program` with small extents in place of its inputs' own.

    Raises
    ------
    LayoutError, ProgramError
        The small extents do not type-check, say where a convolution ties them together.
    """
    inputs = {name: op for name, op in program.ops.items() if isinstance(op, o.Input)}
    mapping = small_extents(_extents(op.type for op in inputs.values()), program.group_ranks)
    buckets = _small_buckets([op.type for op in inputs.values() if op.type.is_list], mapping)
    small = {name: replace(op, type=_small_type(op.type, mapping, buckets)) for name, op in inputs.items()}
    ops: dict[str, o.Op] = {**program.ops, **small}
    types = retyped(ops, {}, set(ops), program.group_ranks)
    result = replace(program, ops=ops, types=types, rebuild=None)
    verify(result)
    return result


def small_extents(extents: Iterable[int], ranks: int) -> dict[int, int]:
    """Equal extents stay equal, distinct distinct, multiples of `ranks` multiples, others none; order and 0, 1 stay.

    The first are large enough for blocks of two elements, so that a block, its neighbour and an uneven last one differ.

    Examples
    --------
    >>> small_extents([8, 1024, 3072, 1000001, 1], 4)
    {1: 1, 8: 8, 1024: 12, 3072: 16, 1000001: 17}
    """
    mapping: dict[int, int] = {}
    last = 1
    for extent in sorted(set(extents)):
        small = extent
        if extent > 1:
            divides = extent % ranks == 0
            first = 2 * ranks if divides else ranks + 1
            small = max(last + 1, min(extent, first))
            # Never beyond the extent itself: it is larger than all before it and of its own kind.
            while (small % ranks == 0) != divides:
                small += 1
        mapping[extent] = small
        last = max(last, small)
    return mapping


def _extents(kinds: Iterable[TensorType]) -> set[int]:
    found: set[int] = set()
    for kind in kinds:
        for shape in kind.pieces if kind.is_list else (kind.shape,):
            found.update(shape)
    return found


def _small_buckets(lists: list[TensorType], mapping: Mapping[int, int]) -> dict[int, int]:
    """A bucket size for each: where the largest tensor has several buckets, so has its small form."""
    found: dict[int, int] = {}
    for bucket in {kind.bucket for kind in lists}:
        pieces = [piece for kind in lists if kind.bucket == bucket for piece in kind.pieces]
        largest = max(math.prod(piece) for piece in pieces)
        small = max(math.prod(mapping[n] for n in piece) for piece in pieces)
        found[bucket] = max(1, small // 4 if largest > bucket else small)
    return found


def _small_type(kind: TensorType, mapping: Mapping[int, int], buckets: Mapping[int, int]) -> TensorType:
    if not kind.is_list:
        return replace(kind, shape=tuple(mapping[n] for n in kind.shape))
    pieces = tuple(tuple(mapping[n] for n in piece) for piece in kind.pieces)
    return replace(kind, shape=(sum(map(math.prod, pieces)),), pieces=pieces, bucket=buckets[kind.bucket])
