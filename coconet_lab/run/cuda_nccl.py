"""Plain collectives and sends between GPUs: NCCL through CuPy, on the stream that the Plan says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from coconet_lab.errors import CodegenError, ToolError
from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64, DType
from coconet_lab.ir.rounding import poison
from coconet_lab.kernels.plan import Collective, Library, Plan, Slot, Transfer
from coconet_lab.run.cuda_device import Gpu, import_cupy, with_deadline
from coconet_lab.run.cuda_memory import DeviceMemory, device_dtype
from coconet_lab.run.cuda_symmetric import exchange
from coconet_lab.run.engine_memory import stored_shape

Step = Callable[[Any], None]
"""Enqueues one thing on the stream it is given."""

# ncclDataType_t and ncclRedOp_t
_KINDS: dict[DType, int] = {INT32: 2, INT64: 4, FP16: 6, FP32: 7, FP64: 8, BF16: 9}
_REDUCTIONS = {"+": 0, "max": 2, "min": 3}


@dataclass(slots=True)
class Communicators:
    """NCCL's communicators of one rank: of all ranks, and of its group; made when first needed, kept with the world."""

    world: Any
    gpu: Gpu
    made: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def of(self, ranks: tuple[int, ...]) -> Any:
        """The communicator of these ranks; collective over all ranks of the world, each with its own group."""
        if ranks not in self.made:
            nccl = self._nccl()
            ids = exchange(self.world, nccl.get_unique_id() if self.world.rank == ranks[0] else None)
            place = ranks.index(self.world.rank)
            self.made[ranks] = with_deadline(
                lambda: nccl.NcclCommunicator(len(ranks), ids[ranks[0]], place),
                f"NCCL's set-up among {len(ranks)} ranks",
                self.gpu,
            )
        return self.made[ranks]

    def _nccl(self) -> Any:
        import_cupy()
        try:
            from cupy.cuda import nccl

            nccl.get_version()
        except (ImportError, AttributeError) as error:
            raise ToolError(
                f"NCCL cannot be loaded: {error}",
                rule="collectives between GPUs are NCCL's",
                where=f"GPU {self.gpu.number}",
                hint="pip install 'nvidia-nccl-cu13>=2.28.9'",
            ) from None
        return nccl


def communicators_of(world: Any, gpu: Gpu) -> Communicators:
    """The communicators of a world, which live as long as it does: making them takes seconds."""
    known = getattr(world, "cuda_communicators", None)
    if isinstance(known, Communicators):
        return known
    made = Communicators(world, gpu)
    world.cuda_communicators = made
    return made


def needs_group(plan: Plan) -> bool:
    """Whether a Plan has collectives of the library."""
    return any(isinstance(e, Collective) or (isinstance(e, Library) and e.op.kind == "AllToAll") for e in plan.entries)


def needs_world(plan: Plan) -> bool:
    """Whether a Plan sends between groups through the library."""
    return any(isinstance(e, Transfer) for e in plan.entries)


def is_extreme(entry: Collective) -> bool:
    """Whether it takes maxima or minima of floating point, which must keep NaN."""
    reduces = entry.kind in ("AllReduce", "ReduceScatter", "Reduce")
    return reduces and entry.reduction != "+" and entry.target.type.dtype.is_float


def collective_step(entry: Collective, memory: DeviceMemory, comm: Any) -> Step:
    """One collective of NCCL's; uneven blocks travel with their padding."""
    source, target = memory.start(entry.source), memory.start(entry.target)
    dtype = entry.target.type.dtype
    kind, reduction = _KINDS[dtype], _REDUCTIONS[entry.reduction]
    if memory.place.ranks == 1:
        return _copy(memory, entry.source, entry.target)
    whole = memory.block_elements(entry.source)
    if is_extreme(entry):
        return _extreme(entry, memory, comm)
    match entry.kind:
        case "AllReduce":
            parts = _pieces(entry.source, dtype)

            def all_reduce(stream: Any) -> None:
                from cupy.cuda import nccl

                nccl.groupStart()
                for offset, count in parts:
                    comm.allReduce(source + offset, target + offset, count, kind, reduction, stream.ptr)
                nccl.groupEnd()

            return all_reduce
        case "ReduceScatter":
            count = memory.block_elements(entry.target)
            return lambda s: comm.reduceScatter(source, target, count, kind, reduction, s.ptr)
        case "AllGather":
            return lambda s: comm.allGather(source, target, whole, kind, s.ptr)
        case "Reduce":
            return _reduce(entry, memory, comm, kind, reduction)
        case "Broadcast":
            return lambda s: comm.broadcast(source, target, whole, kind, entry.root, s.ptr)
        case "AllToAll":
            return _all_to_all_packed(entry.source, source, target, comm, memory)


def _pieces(slot: Slot, dtype: DType) -> list[tuple[int, int]]:
    """Offset in bytes and elements of every tensor of a list, or of the one value."""
    kind = slot.type
    if not kind.is_list:
        return [(0, kind.elements)]
    starts = kind.piece_starts()
    return [(a * dtype.itemsize, b - a) for a, b in pairwise(starts) if b > a]


def _copy(memory: DeviceMemory, source: Slot, target: Slot) -> Step:
    """Among one rank a collective moves a value from one buffer to another, or nothing."""
    if source.buffer == target.buffer:
        return lambda stream: None
    given, taken = memory.view(source), memory.view(target)

    def copy(stream: Any) -> None:
        with stream:
            taken[...] = given

    return copy


def _extreme(entry: Collective, memory: DeviceMemory, comm: Any) -> Step:
    """Maxima and minima that keep NaN, which NCCL's do not: all ranks' values are gathered and combined here."""
    cupy = import_cupy()
    dtype, ranks = entry.target.type.dtype, memory.place.ranks
    source, taken, held = memory.start(entry.source), memory.view(entry.target), device_dtype(dtype)
    shape = stored_shape(memory.plan.buffers[entry.source.buffer], ranks)
    count = math.prod(shape)
    gathered = memory.view_at(memory.scratch(ranks * count * dtype.itemsize), (ranks, *shape), held)
    block = tuple(slice(a, b) for a, b in entry.target.type.ranges(memory.place.index, ranks))
    combine = cupy.maximum if entry.reduction == "max" else cupy.minimum
    away = entry.kind == "Reduce" and memory.place.index != entry.root

    def wide(array: Any) -> Any:
        return (array.astype(cupy.uint32) << 16).view(cupy.float32) if dtype == BF16 else array

    def step(stream: Any) -> None:
        comm.allGather(source, gathered.data.ptr, count, _KINDS[dtype], stream.ptr)
        with stream:
            best = wide(gathered[(0, *block)])
            for rank in range(1, ranks):
                best = combine(best, wide(gathered[(rank, *block)]))
            found = (best.view(cupy.uint32) >> 16).astype(held) if dtype == BF16 else best
            taken[...] = found
            if away:
                taken.fill(_poison_bits(dtype))

    return step


def _poison_bits(dtype: DType) -> Any:
    return poison(dtype).view(device_dtype(dtype)).item() if dtype == BF16 else poison(dtype).item()


def _reduce(entry: Collective, memory: DeviceMemory, comm: Any, kind: int, reduction: int) -> Step:
    """To the root; the others are left with poison."""
    source, target = memory.start(entry.source), memory.start(entry.target)
    count, away = memory.block_elements(entry.source), memory.place.index != entry.root
    bits, taken = _poison_bits(entry.target.type.dtype), memory.view(entry.target)

    def reduce(stream: Any) -> None:
        comm.reduce(source, target, count, kind, reduction, entry.root, stream.ptr)
        if away:
            with stream:
                taken.fill(bits)

    return reduce


def _all_to_all_packed(slot: Slot, source: int, target: int, comm: Any, memory: DeviceMemory) -> Step:
    """Contiguous parts: one send and one receive for each rank."""
    ranks, dtype = memory.place.ranks, slot.type.dtype
    count = memory.block_elements(slot) // ranks
    return lambda stream: _swap(comm, source, target, count, dtype, ranks, stream)


def _swap(comm: Any, source: int, target: int, count: int, dtype: DType, ranks: int, stream: Any) -> None:
    from cupy.cuda import nccl

    nccl.groupStart()
    for rank in range(ranks):
        offset = rank * count * dtype.itemsize
        comm.send(source + offset, count, _KINDS[dtype], rank, stream.ptr)
        comm.recv(target + offset, count, _KINDS[dtype], rank, stream.ptr)
    nccl.groupEnd()


def all_to_all_step(entry: Library, memory: DeviceMemory, comm: Any) -> Step:
    """Each rank splits its block along `split` and joins what it receives along `concat`, through packed staging."""
    cupy = import_cupy()
    split, concat = entry.op.split, entry.op.concat  # type: ignore[attr-defined]
    source, target = memory.view(entry.operands[0]), memory.view(entry.target)
    ranks, dtype = memory.place.ranks, entry.target.type.dtype
    given = cupy.split(source, ranks, axis=split)
    taken = cupy.split(target, ranks, axis=concat)
    shape = (ranks, *given[0].shape)
    nbytes = math.prod(shape) * dtype.itemsize
    out = memory.view_at(memory.scratch(nbytes), shape, device_dtype(dtype))
    into = memory.view_at(memory.scratch(nbytes), shape, device_dtype(dtype))

    def move(stream: Any) -> None:
        with stream:
            for rank in range(ranks):
                out[rank] = given[rank]
        if ranks > 1:
            _swap(comm, out.data.ptr, into.data.ptr, math.prod(shape[1:]), dtype, ranks, stream)
        with stream:
            for rank in range(ranks):
                taken[rank][...] = into[rank] if ranks > 1 else out[rank]

    return move


def transfer_step(entry: Transfer, memory: DeviceMemory, comm: Any) -> Step:
    """A send on the ranks of the first group, a receive on those of the second."""
    place = memory.place
    sends, receives = entry.groups[0], entry.groups[-1]
    slot = entry.source if place.group == sends else entry.target
    view, dtype = memory.view(slot), slot.type.dtype
    if not view.flags.c_contiguous:
        raise CodegenError(
            f"{entry.name!r} sends a block with gaps",
            rule="a library send takes a block without gaps; others are launches",
            where=f"plan of program {memory.plan.name!r}",
            hint="lower(program)",
        )
    if place.group == sends:
        to = place.members(receives)[place.index]
        return lambda s: comm.send(view.data.ptr, view.size, _KINDS[dtype], to, s.ptr)
    sender = place.members(sends)[place.index]
    return lambda s: comm.recv(view.data.ptr, view.size, _KINDS[dtype], sender, s.ptr)
