"""Library calls of a Plan on the CPU: products, convolutions, all-to-alls along any dim, operators of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coconet_lab.errors import CodegenError, ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.rank_values import block_slices, spread
from coconet_lab.ir.rounding import contiguous, literal
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels.numba_convert import narrow
from coconet_lab.kernels.plan import Chunk, Library, Plan
from coconet_lab.run.communicator import Communicator
from coconet_lab.run.engine_memory import Memory

Array = np.ndarray[Any, Any]
Step = Callable[[], None]


def library_step(plan: Plan, entry: Library, memory: Memory, group: Communicator) -> Step:
    """One library call, with its operands at hand."""
    operands = [memory.view(slot) for slot in entry.operands]
    target, dtype = memory.view(entry.target), entry.target.type.dtype
    match entry.op:
        case o.MatMul():
            return _matmul_step(entry, operands, target, memory)
        case o.Conv(stride=stride, padding=padding):
            x, c = (_cut(array, entry.chunk) for array in (operands[0], target))
            return lambda: narrow(_conv(x, operands[1], stride, padding, dtype), c, dtype)
        case o.AllToAll(split=split, concat=concat):
            return lambda: all_to_all(group, operands[0], target, split, concat)
        case o.Custom() as op:
            return _custom_step(plan, op, entry, memory)
        case _:
            raise CodegenError(
                f"no library call for {entry.op.kind} {entry.op.name!r}",
                rule="matmul, conv, all_to_all and operators without a kernel expression are library calls",
                where=f"plan of program {plan.name!r}",
                hint="lower(program)",
            )


def _wide(array: Array, dtype: DType) -> Array:
    """In the type its products are summed in."""
    return array.astype(dtype.compute if dtype.is_float else np.int64, copy=False)


def _cut(array: Array, chunk: Chunk | None, dim: int | None = None) -> Array:
    """A chunk of an array along the chunk's dim, or along another."""
    if chunk is None:
        return array
    at = chunk.dim if dim is None else dim
    return array[(slice(None),) * at + (slice(chunk.start, chunk.stop),)]


def _matmul_parts(a: Array, b: Array, c: Array, chunk: Chunk | None) -> tuple[Array, Array, Array]:
    """Rows of the result need rows of A, columns need columns of B."""
    if chunk is None:
        return a, b, c
    if chunk.dim == c.ndim - 1:
        return a, _cut(b, chunk, b.ndim - 1), _cut(c, chunk)
    return _cut(a, chunk), b, _cut(c, chunk)


def _matmul_step(entry: Library, operands: Sequence[Array], target: Array, memory: Memory) -> Step:
    """One product of two matrices: as a stack of them, NumPy would read B once for each."""
    dtype = entry.target.type.dtype
    a, b, c = _matmul_parts(operands[0], operands[1], target, entry.chunk)
    # What is not cut is converted with the first chunk and serves the others.
    is_first = entry.chunk is None or entry.chunk.index == 0
    left = memory.widened(entry.operands[0], a, dtype, is_whole=a is operands[0], is_packed=True)
    right = memory.widened(entry.operands[1], b, dtype, is_whole=b is operands[1])
    renewed = [w for w, is_cut in ((left, a is not operands[0]), (right, b is not operands[1])) if is_cut or is_first]
    rows = int(np.prod(a.shape[:-1], dtype=np.int64))
    is_direct = c.dtype == left.wide.dtype and c.flags.c_contiguous
    product = c if is_direct else np.empty(c.shape, left.wide.dtype)
    x, y, z = left.wide.reshape(rows, a.shape[-1]), right.wide, product.reshape(rows, c.shape[-1])

    def multiply() -> None:
        for wide in renewed:
            wide.renew()
        with np.errstate(all="ignore"):
            np.matmul(x, y, out=z)
        if not is_direct:
            narrow(product, c, dtype)

    return multiply


def _conv(x: Array, w: Array, stride: tuple[int, ...], padding: tuple[int, ...], dtype: DType) -> Array:
    """Windows against weights: one matrix product."""
    spatial = len(stride)
    padded = np.pad(_wide(x, dtype), [(0, 0), (0, 0), *((p, p) for p in padding)])
    dims = tuple(range(2, 2 + spatial))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=dims)
    windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in stride))]
    inner = [1, *range(2 + spatial, 2 + 2 * spatial)]
    with np.errstate(all="ignore"):
        found = np.tensordot(windows, _wide(w, dtype), axes=(inner, [1, *dims]))
    return np.asarray(np.moveaxis(found, -1, 1))


def all_to_all(group: Communicator, source: Array, target: Array, split: int, concat: int) -> None:
    """Each rank splits its block along `split` and joins what it receives along `concat`."""
    parts = np.split(source, group.size, axis=split)
    shape = parts[0].shape
    count = parts[0].size
    flat = group.all_to_all([np.ascontiguousarray(part).reshape(-1) for part in parts], [count] * group.size)
    target[...] = np.concatenate([part.reshape(shape) for part in flat], axis=concat)


def _custom_step(plan: Plan, op: o.Custom, entry: Library, memory: Memory) -> Step:
    function = op.operator.call or op.operator.meaning
    target, kind = memory.view(entry.target), entry.target.type
    ranges = memory.ranges(kind)
    sources = dict(zip(op.sources, entry.operands))
    kinds = [slot.type for slot in sources.values()]
    dtype = kinds[0].dtype if kinds else kind.dtype

    def call() -> None:
        arrays = []
        for item in op.operands:
            if isinstance(item, str):
                slot = sources[item]
                arrays.append(_for_block(memory.view(slot), slot.type, kind, ranges))
            else:
                arrays.append(literal(item.resolve(plan.group_ranks), dtype))
        result = np.asarray(function(*arrays, ranges=ranges))
        if result.shape != target.shape or result.dtype != target.dtype:
            raise ProgramError(
                f"operator {op.operator.name!r} made {result.dtype}{list(result.shape)} for {op.name!r}",
                rule=f"it returns the block its type says: {target.dtype}{list(target.shape)}",
                where=f"plan of program {plan.name!r}, value {op.name!r}",
                hint="operate on the arrays given, and return .astype of the type's dtype",
            )
        target[...] = result

    return call


def _for_block(array: Array, kind: TensorType, result: TensorType, ranges: Sequence[tuple[int, int]]) -> Array:
    """What a block of the result needs of an operand."""
    if kind.per_piece and result.is_list:
        return np.asarray(spread(array, result)[tuple(slice(*r) for r in ranges)])
    if kind.layout.is_replicated and result.layout.is_sliced:
        return contiguous(array[block_slices(kind, result, tuple(ranges))])
    return contiguous(array)
