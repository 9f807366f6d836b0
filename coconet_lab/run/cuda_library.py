"""Library calls of a Plan on the GPU: products by cuBLAS, convolutions and users' operators through CuPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coconet_lab.errors import CodegenError, ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.rank_values import block_slices, spread
from coconet_lab.ir.rounding import literal
from coconet_lab.kernels.plan import AnyEntry, Chunk, Collective, Library, Plan
from coconet_lab.run.cublas import TYPES, Product
from coconet_lab.run.cuda_device import import_cupy
from coconet_lab.run.cuda_memory import DeviceMemory
from coconet_lab.run.cuda_nccl import is_extreme

Step = Callable[[Any], None]
_LARGEST_INT = 2**31 - 1


def library_step(plan: Plan, entry: Library, memory: DeviceMemory, settle: Step) -> Step:
    """One library call, with its operands at hand; `settle` waits for a stream, but not for ever."""
    match entry.op:
        case o.MatMul():
            return _matmul_step(entry, memory)
        case o.Conv() | o.Custom():
            return _on_host_step(plan, entry, memory, settle)
        case _:
            raise CodegenError(
                f"no library call for {entry.op.kind} {entry.op.name!r}",
                rule="matmul, conv, all_to_all and operators without a kernel expression are library calls",
                where=f"plan of program {plan.name!r}",
                hint="lower(program)",
            )


def needs_temporaries(entry: AnyEntry) -> bool:
    """Whether an entry takes memory as it runs, or leaves the GPU: a graph would replay what is no longer there."""
    if isinstance(entry, Collective):
        return is_extreme(entry)
    calls_host = isinstance(entry, Library) and isinstance(entry.op, o.Conv | o.Custom)
    return calls_host or (isinstance(entry, Library) and not entry.target.type.dtype.is_float)


def _cut(array: Any, chunk: Chunk | None, dim: int | None = None) -> Any:
    if chunk is None:
        return array
    at = chunk.dim if dim is None else dim
    return array[(slice(None),) * at + (slice(chunk.start, chunk.stop),)]


def _matmul_step(entry: Library, memory: DeviceMemory) -> Step:
    a, b, c = (*(memory.view(slot) for slot in entry.operands), memory.view(entry.target))
    dtype, chunk = entry.target.type.dtype, entry.chunk
    if chunk is not None and chunk.dim == c.ndim - 1:
        b, c = _cut(b, chunk, b.ndim - 1), _cut(c, chunk)
    elif chunk is not None:
        a, c = _cut(a, chunk), _cut(c, chunk)
    if not c.size:
        return lambda stream: None
    if dtype not in TYPES:
        return _integer_product(a, b, c)
    rows_a, rows_c = _rows(a, entry.name), _rows(c, entry.name)
    if b.strides[-1] != b.itemsize or rows_a[0] != rows_c[0]:
        raise _no_product(entry.name)
    return _gemm(entry, (rows_a, rows_c), (a, b, c), dtype, memory)


Rows = tuple[int, int, int, int]
"""Batches, rows of each, elements from row to row and from batch to batch."""


def _rows(array: Any, name: str) -> Rows:
    """An array ``[…, K]`` as batches of rows: the dims but the last run together, but for one border at most."""
    item = array.itemsize
    if array.strides[-1] != item and array.shape[-1] > 1:
        raise _no_product(name)
    dims = [(n, s // item) for n, s in zip(array.shape[:-1], array.strides[:-1]) if n != 1]
    runs: list[tuple[int, int]] = []
    for extent, stride in reversed(dims):
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1] = (runs[-1][0] * extent, runs[-1][1])
        else:
            runs.append((extent, stride))
    if len(runs) > 2:
        raise _no_product(name)
    count, step = runs[0] if runs else (1, array.shape[-1])
    batches, batch_step = runs[1] if len(runs) > 1 else (1, 0)
    return batches, count, step, batch_step


def _no_product(name: str) -> CodegenError:
    return CodegenError(
        f"matmul {name!r} reads or writes a block with too many gaps for cuBLAS",
        rule="rows of elements that follow each other, in batches of rows at equal distances",
        where="the CUDA engine",
        hint="cl.copy of the operand first",
    )


def _gemm(entry: Library, of: tuple[Rows, Rows], abc: tuple[Any, Any, Any], dtype: DType, memory: DeviceMemory) -> Step:
    (_, _, step_a, batch_a), (batches, rows, step_c, batch_c) = of
    a, b, c = abc
    inner, columns = b.shape
    step_b = max(b.strides[0] // b.itemsize, 1)
    product = Product(batches, rows, columns, inner, step_a, step_b, step_c, batch_a, batch_c, dtype)
    # ctypes would cut a larger number to what is left of it in 32 bits, without a word.
    if max(batches, rows, columns, inner, step_a, step_b, step_c) > _LARGEST_INT:
        raise CodegenError(
            f"matmul {entry.name!r} has {rows} rows of {inner} elements, and {columns} columns",
            rule=f"extents and steps of a product are at most {_LARGEST_INT}: cuBLAS takes them as 32-bit numbers",
            where="the CUDA engine",
            hint="more ranks, or a product for each part of the rows",
        )
    cublas = memory.cublas(entry.stream)
    left, right, target = a.data.ptr, b.data.ptr, c.data.ptr
    return lambda stream: cublas.multiply(product, left, right, target, stream)


def _integer_product(a: Any, b: Any, c: Any) -> Step:
    cupy = import_cupy()

    def multiply(stream: Any) -> None:
        with stream:
            c[...] = cupy.matmul(a.astype(cupy.int64), b.astype(cupy.int64)).astype(c.dtype)

    return multiply


def _on_host_step(plan: Plan, entry: Library, memory: DeviceMemory, settle: Step) -> Step:
    """What has no GPU library here is computed by its NumPy meaning: correct, and shown as a host call."""

    def call(stream: Any) -> None:
        settle(stream)
        arrays = [memory.fetch(slot) for slot in entry.operands]
        if isinstance(entry.op, o.Conv):
            from coconet_lab.ir.contract import conv

            result = conv(arrays[0], arrays[1], entry.op.stride, entry.op.padding, entry.target.type.dtype)
        else:
            result = _custom(plan, entry, memory, arrays)
        with stream:  # not for the device: a collective on another stream may wait for ever
            memory.fill(entry.target, np.ascontiguousarray(result))
        settle(stream)

    return call


def _custom(plan: Plan, entry: Library, memory: DeviceMemory, arrays: list[Any]) -> Any:
    op: Any = entry.op
    kind = entry.target.type
    ranges = kind.ranges(memory.place.index, memory.place.ranks)
    given = dict(zip(op.sources, zip(arrays, (slot.type for slot in entry.operands))))
    first = next(iter(given.values()))[1].dtype if given else kind.dtype
    values = []
    for item in op.operands:
        if not isinstance(item, str):
            values.append(literal(item.resolve(plan.group_ranks), first))
            continue
        array, source = given[item]
        if source.per_piece and kind.is_list:
            array = spread(array, kind)[tuple(slice(*r) for r in ranges)]
        elif source.layout.is_replicated and kind.layout.is_sliced:
            array = array[block_slices(source, kind, ranges)]
        values.append(np.ascontiguousarray(array))
    operator = op.operator
    result = np.asarray((operator.call or operator.meaning)(*values, ranges=ranges))
    expected = tuple(stop - start for start, stop in ranges)
    if result.shape != expected:
        raise ProgramError(
            f"operator {operator.name!r} made {list(result.shape)} for {op.name!r}",
            rule=f"it returns the block its type says: {list(expected)}",
            where=f"plan of program {plan.name!r}, value {op.name!r}",
            hint="operate on the arrays given",
        )
    return result.astype(kind.dtype.numpy)
