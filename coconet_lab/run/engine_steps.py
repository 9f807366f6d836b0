"""Entries of a Plan as prebound steps: everything that can be looked up is looked up before the first run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from coconet_lab.ir.rounding import poison
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels.kernel import Kernel
from coconet_lab.kernels.numba_compile import Compiled
from coconet_lab.kernels.numba_printer import barriers
from coconet_lab.kernels.plan import Collective, Launch, Sync, Transfer
from coconet_lab.run.communicator import Communicator
from coconet_lab.run.engine_library import all_to_all
from coconet_lab.run.engine_meet import Meetings
from coconet_lab.run.engine_memory import Memory, run_time_extents

Array = np.ndarray[Any, Any]
Step = Callable[[], None]
_INSIDE = (Sync("barrier"), Sync("barrier", "host"))  # meetings that a kernel holds itself


class Arguments:
    """The scalar arguments of one launch, overwritten in place: a new value recompiles nothing."""

    def __init__(self, launch: Launch) -> None:
        params = launch.kernel.scalars
        self._floats = [name for name, p in zip(launch.scalars, params) if p.dtype.is_float]
        self._integers = [name for name, p in zip(launch.scalars, params) if not p.dtype.is_float]
        self.scalars = np.zeros(len(self._floats), np.float64)
        self.integers = np.zeros(len(self._integers), np.int64)

    def set(self, values: dict[str, Array]) -> None:
        """Take new values."""
        for at, name in enumerate(self._floats):
            self.scalars[at] = values[name].astype(np.float64)
        for at, name in enumerate(self._integers):
            self.integers[at] = values[name].astype(np.int64)


def launch_step(
    index: int, entry: Launch, kernel: Compiled, memory: Memory, meetings: Meetings, arguments: Arguments
) -> Step:
    """A generated kernel with its argument tables; its group's barriers happen inside of it."""
    pointers, extents = memory.pointers(index, entry), run_time_extents(entry.kernel)
    scalars, integers = arguments.scalars, arguments.integers
    place, pads, deadline_ns = memory.place, meetings.pads, meetings.deadline_ns
    rank = (place.index + entry.shift * place.local) % place.ranks  # whose block it walks
    lo, hi = (entry.chunk.start, entry.chunk.stop) if entry.chunk else (0, _walked(entry.kernel))
    opens, closes = (int(any(sync in _INSIDE for sync in syncs)) for syncs in (entry.opens, entry.closes))
    count = barriers(entry.kernel)
    turn = 0

    def launch() -> None:
        nonlocal turn
        epoch = meetings.epoch
        meetings.epoch = epoch + count
        status = kernel(
            pointers, extents, scalars, integers, rank, lo, hi, turn, pads, epoch, deadline_ns, opens, closes
        )
        if status:
            raise meetings.lost(index, place.peers(-1)[status - 1])
        turn ^= 1

    return launch


def meeting_steps(index: int, syncs: tuple[Sync, ...], meetings: Meetings, inside: bool) -> list[Step]:
    """Steps for an entry's meetings; a launch does its group's barriers itself (`inside`)."""
    chosen = [sync for sync in syncs if not (inside and sync in _INSIDE)]
    return [meetings.step(sync, index) for sync in chosen]


def _walked(kernel: Kernel) -> int:
    dim = kernel.space.chunk_dim
    return kernel.space.shape[dim] if dim is not None else 0


def collective_step(entry: Collective, memory: Memory, group: Communicator) -> Step:
    """A collective of MPI's, or of threads."""
    if entry.kind == "AllToAll":
        split, concat = entry.op.split, entry.op.concat  # type: ignore[attr-defined]
        return lambda: all_to_all(group, memory.view(entry.source), memory.view(entry.target), split, concat)
    source, target = _Flat(memory.view(entry.source)), _Flat(memory.view(entry.target))
    dtype, reduction, root = entry.target.type.dtype, entry.reduction, entry.root
    before, after = source.read, target.array
    match entry.kind:
        case "AllReduce":
            pieces = _piece_slices(entry.source.type)

            def move() -> None:
                given = before()
                for piece in pieces:
                    group.all_reduce(given[piece], after[piece], reduction, dtype)

        case "ReduceScatter":
            counts = _counts(entry.target.type, memory)

            def move() -> None:
                group.reduce_scatter(before(), after, counts, reduction, dtype)

        case "AllGather":
            counts = _counts(entry.source.type, memory)

            def move() -> None:
                group.all_gather(before(), after, counts)

        case "Reduce":
            nothing = poison(dtype)

            def move() -> None:
                if group.rank != root:
                    after.fill(nothing)
                group.reduce(before(), after, root, reduction, dtype)

        case "Broadcast":

            def move() -> None:
                if group.rank == root:
                    after[:] = before()
                group.broadcast(after, root)

    return _written_back(move, target)


def transfer_step(entry: Transfer, memory: Memory, group: Communicator) -> Step:
    """A send on the ranks of the first group, a receive on those of the second."""
    place = memory.place
    sends, receives = entry.groups[0], entry.groups[-1]
    if place.group == sends:
        source = _Flat(memory.view(entry.source))
        to = place.members(receives)[place.index]
        return lambda: group.send(source.read(), to)
    target = _Flat(memory.view(entry.target))
    sender = place.members(sends)[place.index]
    return _written_back(lambda: group.receive(target.array, sender), target)


class _Flat:
    """An array as one row of elements: the array itself where it is contiguous, else a copy."""

    def __init__(self, view: Array) -> None:
        self.view = view
        self.is_direct = view.flags.c_contiguous
        self.array = view.reshape(-1) if self.is_direct else np.empty(view.size, view.dtype)

    def read(self) -> Array:
        """The elements as they are now."""
        if not self.is_direct:
            self.array.reshape(self.view.shape)[...] = self.view
        return self.array

    def write(self) -> None:
        """Put a copy's elements back."""
        self.view[...] = self.array.reshape(self.view.shape)


def _written_back(move: Step, target: _Flat) -> Step:
    if target.is_direct:
        return move

    def both() -> None:
        move()
        target.write()

    return both


def _counts(kind: TensorType, memory: Memory) -> list[int]:
    """Elements of every rank's block."""
    ranks = memory.place.ranks
    return [int(np.prod(kind.local_shape(rank, ranks), dtype=np.int64)) for rank in range(ranks)]


def _piece_slices(kind: TensorType) -> list[slice]:
    """One part a tensor of a list, else all."""
    if not kind.is_list:
        return [slice(None)]
    starts = kind.piece_starts()
    return [slice(a, b) for a, b in itertools.pairwise(starts) if b > a]
