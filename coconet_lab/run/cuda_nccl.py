"""Plain collectives and sends between GPUs: NCCL through CuPy, on the stream that the Plan says."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from coconet_lab.errors import CodegenError, ToolError
from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64, DType
from coconet_lab.ir.rounding import poison
from coconet_lab.kernels.plan import AnyEntry, Collective, Library, Plan, Slot, Transfer
from coconet_lab.run.cuda_device import Gpu, import_cupy, with_deadline
from coconet_lab.run.cuda_memory import DeviceMemory, device_dtype
from coconet_lab.run.cuda_symmetric import exchange
from coconet_lab.run.engine_memory import stored_shape
from coconet_lab.run.watch import DeathWatch

Step = Callable[[Any], None]
"""Enqueues one thing on the stream it is given."""

# ncclDataType_t and ncclRedOp_t
_KINDS: dict[DType, int] = {INT32: 2, INT64: 4, FP16: 6, FP32: 7, FP64: 8, BF16: 9}
_REDUCTIONS = {"+": 0, "max": 2, "min": 3}

IN_PROGRESS = 7
"""Of ncclResult_t: no error."""

ABORT_S = 10.0
"""Seconds that NCCL may take to abort before it is left to itself."""


class User(Protocol):
    """Who calls communicators of this rank."""

    def lose(self) -> list[Any]:
        """They are being aborted: the graphs that hold calls of them, let go of."""


@dataclass(slots=True)
class Communicators:
    """NCCL's communicators of one rank: of all ranks, and of its group; made when first needed, kept with the world."""

    world: Any
    gpu: Gpu
    made: dict[tuple[int, ...], Any] = field(default_factory=dict)
    deaths: DeathWatch | None = None
    is_lost: bool = False
    users: weakref.WeakSet[User] = field(default_factory=weakref.WeakSet)

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

    def dead(self) -> tuple[int, ...]:
        """Ranks that have ended, in the order in which they did."""
        return tuple(self.deaths.order) if self.deaths else ()

    def error(self) -> str:
        """What NCCL has met in an operation that goes on; empty where it is content."""
        for comm in self.made.values():
            try:
                comm.check_async_error()
            except KeyError as error:  # CuPy's, which has no words for the newest results
                if error.args != (IN_PROGRESS,):
                    return f"result {error}"
            except Exception as error:
                return str(error)
        return ""

    def abort(self) -> bool:
        """Take the communicators from all that use them; whether NCCL has done so in time.

        All at once, in threads that can be left behind: to free one may wait for the kernels of another, and NCCL ends
        none before the graphs that use it have gone.
        """
        comms, self.made, self.is_lost = list(self.made.values()), {}, True
        runtime = import_cupy().cuda.runtime

        def end(action: Callable[[], Any]) -> None:
            with contextlib.suppress(Exception):  # there is nothing that could be done about it
                runtime.setDevice(self.gpu.number)
                action()

        graphs = [graph for user in list(self.users) for graph in user.lose()] if comms else []
        actions = [*(comm.abort for comm in comms), graphs.clear]
        threads = [threading.Thread(target=end, args=(a,), name="NCCL's abort", daemon=True) for a in actions]
        for thread in threads:
            thread.start()
        limit_s = time.monotonic() + ABORT_S
        for thread in threads:
            thread.join(max(0.0, limit_s - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

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
    """The communicators of a world, which live as long as it does: making them takes seconds. Collective.

    Where a rank had to abort its own, all make new ones.
    """
    known: Communicators | None = getattr(world, "cuda_communicators", None)
    is_lost = any(exchange(world, known is not None and known.is_lost))
    if known is not None and not is_lost:
        return known
    if known is not None and known.made:
        known.abort()
    made = Communicators(world, gpu, deaths=known.deaths if known is not None else _deaths(world))
    world.cuda_communicators = made
    return made


def _deaths(world: Any) -> DeathWatch | None:
    """Watches the processes of the other ranks, where this one can see them; collective."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    # In another container, and on another host, the same number is another process.
    everybody = exchange(world, ((os.uname().nodename, space), os.getpid()))
    here = everybody[world.rank][0]
    others = [pid if there == here and pid != os.getpid() else -1 for there, pid in everybody]
    if max(others) < 0:
        return None
    watch = DeathWatch(others)
    weakref.finalize(world, watch.close).atexit = False
    return watch


def is_nccl(entry: AnyEntry) -> bool:
    """Whether ranks wait for each other in an entry inside of NCCL."""
    return isinstance(entry, Collective | Transfer) or (isinstance(entry, Library) and entry.op.kind == "AllToAll")


def needs_group(plan: Plan) -> bool:
    """Whether a Plan has collectives of the library."""
    return any(is_nccl(e) and not isinstance(e, Transfer) for e in plan.entries)


def needs_world(plan: Plan) -> bool:
    """Whether a Plan sends between groups through the library."""
    return any(isinstance(e, Transfer) for e in plan.entries)


def is_extreme(entry: Collective) -> bool:
    """Whether it takes maxima or minima of floating point, which must keep NaN."""
    reduces = entry.kind in ("AllReduce", "ReduceScatter", "Reduce")
    return reduces and entry.reduction != "+" and entry.target.type.dtype.is_float


def collective_step(entry: Collective, memory: DeviceMemory, comm: Any) -> Step:
    """One collective of NCCL's; uneven blocks travel with their padding."""
    dtype = entry.target.type.dtype
    kind, reduction = _KINDS[dtype], _REDUCTIONS[entry.reduction]
    if memory.place.ranks == 1:
        return _copy(memory, entry.source, entry.target)
    if is_extreme(entry):
        return _extreme(entry, memory, comm)
    match entry.kind:
        case "AllReduce":
            return _grouped(entry, memory, lambda a, b, n, s: comm.allReduce(a, b, n, kind, reduction, s))
        case "Reduce":
            return _reduce(entry, memory, comm, kind, reduction)
        case "Broadcast":
            return _grouped(entry, memory, lambda a, b, n, s: comm.broadcast(a, b, n, kind, entry.root, s))
    source, target = memory.start(entry.source), memory.start(entry.target)
    match entry.kind:
        case "ReduceScatter":
            count = memory.block_elements(entry.target)
            return lambda s: comm.reduceScatter(source, target, count, kind, reduction, s.ptr)
        case "AllGather":
            count = memory.block_elements(entry.source)
            return lambda s: comm.allGather(source, target, count, kind, s.ptr)
        case "AllToAll":
            return _all_to_all_packed(entry.source, source, target, comm, memory)


def _grouped(entry: Collective, memory: DeviceMemory, call: Callable[[int, int, int, int], None]) -> Step:
    """One call for a whole value, or a group of calls: one for each tensor of a list, where it lies."""
    places = [(a, b, count) for (a, count), (b, _) in zip(memory.runs(entry.source), memory.runs(entry.target))]

    def group(stream: Any) -> None:
        from cupy.cuda import nccl

        nccl.groupStart()
        for source, target, count in places:
            call(source, target, count, stream.ptr)
        nccl.groupEnd()

    return group


def _copy(memory: DeviceMemory, source: Slot, target: Slot) -> Step:
    """Among one rank a collective moves a value from one buffer to another, or nothing."""
    if source.buffer == target.buffer:
        return lambda stream: None
    moved = list(zip(memory.parts(source), memory.parts(target)))

    def copy(stream: Any) -> None:
        with stream:
            for given, taken in moved:
                taken[...] = given

    return copy


def _extreme(entry: Collective, memory: DeviceMemory, comm: Any) -> Step:
    """Maxima and minima that keep NaN, which NCCL's do not: all ranks' values are gathered and combined here."""
    if not entry.source.type.is_list:
        shape = stored_shape(memory.plan.buffers[entry.source.buffer], memory.place.ranks)
        block = tuple(slice(a, b) for a, b in entry.target.type.ranges(memory.place.index, memory.place.ranks))
        return _extreme_of(entry, memory, comm, memory.start(entry.source), shape, block, memory.view(entry.target))
    parts = zip(memory.runs(entry.source), memory.parts(entry.target))
    steps = [_extreme_of(entry, memory, comm, a, (n,), (slice(n),), taken) for (a, n), taken in parts]

    def each(stream: Any) -> None:
        for step in steps:
            step(stream)

    return each


def _extreme_of(
    entry: Collective,
    memory: DeviceMemory,
    comm: Any,
    source: int,
    shape: tuple[int, ...],
    block: tuple[slice, ...],
    taken: Any,
) -> Step:
    """That of one value, or of one tensor of a list: of `shape` at an address, `block` of it into `taken`."""
    cupy = import_cupy()
    dtype, ranks, held = entry.target.type.dtype, memory.place.ranks, device_dtype(entry.target.type.dtype)
    count = math.prod(shape)
    gathered = memory.view_at(memory.scratch(ranks * count * dtype.itemsize), (ranks, *shape), held)
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
    step = _grouped(entry, memory, lambda a, b, n, s: comm.reduce(a, b, n, kind, reduction, entry.root, s))
    parts = memory.parts(entry.target) if memory.place.index != entry.root else []
    bits = _poison_bits(entry.target.type.dtype)

    def reduce(stream: Any) -> None:
        step(stream)
        with stream:
            for part in parts:
                part.fill(bits)

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
    parts, kind = memory.parts(slot), _KINDS[slot.type.dtype]
    if not all(part.flags.c_contiguous for part in parts):
        raise CodegenError(
            f"{entry.name!r} sends a block with gaps",
            rule="a library send takes a block without gaps; others are launches",
            where=f"plan of program {memory.plan.name!r}",
            hint="lower(program)",
        )
    is_sender = place.group == sends
    peer = place.members(receives if is_sender else sends)[place.index]

    def move(stream: Any) -> None:
        from cupy.cuda import nccl

        nccl.groupStart()
        for part in parts:
            (comm.send if is_sender else comm.recv)(part.data.ptr, part.size, kind, peer, stream.ptr)
        nccl.groupEnd()

    return move
