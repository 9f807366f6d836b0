"""Bytes and FLOPs of every entry, counted for the rank with the largest block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import FP32
from coconet_lab.ir.layout import Replicated, Sliced
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.plan import Chunk, Link

PARTIAL_BYTES = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """What an entry moves and computes; the fields of `Entry` with these names."""

    bytes_read: int = 0
    bytes_written: int = 0
    link_bytes: dict[Link, int] = field(default_factory=dict)
    flops: int = 0

    def fields(self) -> dict[str, object]:
        """As keyword arguments of an entry."""
        links = {link: sent for link, sent in self.link_bytes.items() if sent}
        return {
            "bytes_read": self.bytes_read, "bytes_written": self.bytes_written, "link_bytes": links, "flops": self.flops
        }  # fmt: skip


def walked(space: k.Space, chunk: Chunk | None = None) -> tuple[int, ...]:
    """Elements along each dim that the largest rank walks."""
    layout = Replicated if space.dim is None else Sliced(space.dim)
    # The dtype does not matter here.
    kind = TensorType(FP32, space.shape, layout, 0, space.pieces, False, space.bucket)
    return cut(kind.stored_shape(space.parts), chunk)


def cut(extents: Sequence[int], chunk: Chunk | None) -> tuple[int, ...]:
    """Extents with the chunk's dim cut to the chunk."""
    if chunk is None:
        return tuple(extents)
    return tuple(max(0, min(n, chunk.stop) - chunk.start) if d == chunk.dim else n for d, n in enumerate(extents))


def elements(param: k.TensorParam, space: k.Space, extents: Sequence[int]) -> int:
    """Elements of a parameter that a walk over `extents` touches."""
    shift = len(space.shape) - len(param.shape)
    if param.per_piece:
        return len(space.pieces)
    return math.prod(1 if n == 1 != space.shape[d + shift] else extents[d + shift] for d, n in enumerate(param.shape))


def kernel_cost(kernel: k.Kernel, chunk: Chunk | None = None) -> Cost:
    """Every load and store of every phase; over the link goes what peers read of ours, as much as we read of theirs."""
    space, ranks = kernel.space, kernel.space.ranks
    extents = walked(space, chunk)
    count = math.prod(extents)
    read = written = flops = group = between = 0
    for statement, times in _times(kernel, count):
        match statement:
            case k.Load(_, at):
                read += _bytes(kernel, at, extents)
            case k.Combine(_, at):
                read += ranks * _bytes(kernel, at, extents)
                group += (ranks - 1) * _bytes(kernel, at, extents)
                flops += (ranks - 1) * times
            case k.Store(at):
                written += _bytes(kernel, at, extents)
            case k.StoreAll(at):
                written += ranks * _bytes(kernel, at, extents)
                group += (ranks - 1) * _bytes(kernel, at, extents)
            case k.StoreTo(at):
                between += _bytes(kernel, at, extents)
            case k.Apply() | k.Convert() | k.Drop() | k.Call() | k.Accumulate():
                flops += times
            case _:
                pass
    group += sum((ranks - 1) * PARTIAL_BYTES * _results(a, space, extents) for a in kernel.accumulators if a.crosses)
    return Cost(read, written, {"group": group, "between groups": between}, flops)


def _times(kernel: k.Kernel, count: int) -> Iterator[tuple[k.Statement, int]]:
    for phase in kernel.phases:
        yield from ((statement, 1) for statement in phase.uniform)
        yield from ((statement, count) for statement in phase.body)


def _bytes(kernel: k.Kernel, at: int, extents: Sequence[int]) -> int:
    param = kernel.tensors[at]
    return elements(param, kernel.space, extents) * param.dtype.itemsize


def _results(accumulator: k.Accumulator, space: k.Space, extents: Sequence[int]) -> int:
    if accumulator.per_piece:
        return len(space.pieces)
    dims = range(len(extents)) if accumulator.dims is None else accumulator.dims
    return math.prod(n for d, n in enumerate(extents) if d not in dims)


def collective_cost(op: o.Op, source: TensorType, target: TensorType, ranks: int) -> Cost:
    """A library collective as a ring sends it; memory is read and written once."""
    read, written = source.stored_bytes(ranks), target.stored_bytes(ranks)
    match op:
        case o.AllReduce():
            sent = 2 * (ranks - 1) * written // ranks
        case o.ReduceScatter():
            sent = (ranks - 1) * written
        case o.AllGather():
            sent = (ranks - 1) * read
        case o.AllToAll():
            sent = (ranks - 1) * read // ranks
        case _:
            # Reduce and Broadcast pass the whole value down a chain.
            sent = read if ranks > 1 else 0
    return Cost(read, written, {"group": sent})


def transfer_cost(kind: TensorType, ranks: int) -> Cost:
    """A send: read on one side, written on the other."""
    moved = kind.stored_bytes(ranks)
    return Cost(moved, moved, {"between groups": moved})


def library_cost(
    op: o.Op, operands: Sequence[TensorType], result: TensorType, ranks: int, chunk: Chunk | None = None
) -> Cost:
    """A matmul's 2MNK, a convolution's likewise; custom operators count one operation an element."""
    extents = cut(result.stored_shape(ranks), chunk)
    count = math.prod(extents)
    local = [list(kind.stored_shape(ranks)) for kind in operands]
    flops = count
    if isinstance(op, o.MatMul):
        a, b = local
        flops = 2 * count * a[-1]
        local = [[*extents[:-1], a[-1]], [b[0], extents[-1]]]
    elif isinstance(op, o.Conv):
        x, w = local
        flops = 2 * count * math.prod(w[1:])
        local = [[extents[0], *x[1:]], [extents[1], *w[1:]]]
    read = sum(math.prod(shape) * kind.dtype.itemsize for shape, kind in zip(local, operands))
    return Cost(read, count * result.dtype.itemsize, {}, flops)
